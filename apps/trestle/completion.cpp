#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>

#include "apps/trestle/verbs.h"
#include "trestle/base/text.h"

namespace trestle::app {

namespace {

// Flags of recipes have several names; one is enough to be offered: the one that --help prints last.
std::vector<std::string> words_of(const CLI::App& verb) {
  std::vector<std::string> words;
  for (const CLI::App* inner : verb.get_subcommands([](const CLI::App*) { return true; }))
    words.push_back(inner->get_name());
  for (const CLI::Option* option : verb.get_options())
    if (!option->get_lnames().empty()) words.push_back("--" + option->get_lnames().back());
  return words;
}

// Lines of "name words ..." for the program and each verb, with its own verbs.
void add_words(const CLI::App& verb, const std::string& path,
               std::vector<std::pair<std::string, std::string>>& lines) {
  lines.emplace_back(path, join(words_of(verb), " "));
  for (const CLI::App* inner : verb.get_subcommands([](const CLI::App*) { return true; }))
    add_words(*inner, path.empty() ? inner->get_name() : path + " " + inner->get_name(), lines);
}

// Files are offered where no word of trestle's fits, as the shell does by itself.
std::string for_bash(const CLI::App& app) {
  std::vector<std::pair<std::string, std::string>> lines;
  add_words(app, "", lines);
  std::string script =
      "_trestle() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" path=\"\" i\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    case \"${path:+$path }${COMP_WORDS[i]}\" in\n";
  for (const auto& [path, words] : lines)
    if (!path.empty()) script += text("      \"", path, "\") path=\"", path, "\" ;;\n");
  script += "    esac\n  done\n  local words=\"\"\n  case \"$path\" in\n";
  for (const auto& [path, words] : lines)
    script += text("    \"", path, "\") words=\"", words, "\" ;;\n");
  script +=
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
      "}\n"
      "complete -o default -F _trestle trestle\n";
  return script;
}

std::string for_zsh(const CLI::App& app) {
  return "autoload -U +X bashcompinit && bashcompinit\n" + for_bash(app);
}

std::string for_fish(const CLI::App& app) {
  std::vector<std::pair<std::string, std::string>> lines;
  add_words(app, "", lines);
  std::string script;
  for (const auto& [path, words] : lines) {
    const std::vector<std::string> seen = split(path, ' ');
    const std::string when =
        path.empty() ? "__fish_use_subcommand" : text("__fish_seen_subcommand_from ", seen.back());
    for (const std::string& word : split(words, ' '))
      script += word.starts_with("--")
                    ? text("complete -c trestle -n '", when, "' -l ", word.substr(2), "\n")
                    : text("complete -c trestle -n '", when, "' -a ", word, "\n");
  }
  return script;
}

}  // namespace

void add_completion(CLI::App& app, Action& action) {
  CLI::App* verb = app.add_subcommand(
      "completion", "Print a script that completes verbs and flags in your shell");
  auto shell = std::make_shared<std::string>();
  verb->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("SHELL");
  verb->footer(
      examples({"trestle completion bash > ~/.local/share/bash-completion/completions/trestle",
                "source <(trestle completion zsh)",
                "trestle completion fish > ~/.config/fish/completions/trestle.fish"}) +
      exit_codes());
  verb->callback([shell, &app, &action] {
    action = [shell, &app] {
      std::cout << (*shell == "bash"  ? for_bash(app)
                    : *shell == "zsh" ? for_zsh(app)
                                      : for_fish(app))
                << std::flush;
      return 0;
    };
  });
}

}  // namespace trestle::app
