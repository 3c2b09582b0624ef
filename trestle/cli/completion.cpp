#include <iostream>
#include <memory>

#include "trestle/base/text.h"
#include "trestle/cli/verbs.h"

namespace trestle::cli {

namespace {

// -o default: the shell completes file names if no word of trestle matches.
std::string for_bash(const CommandLine& line) {
  const auto verbs = line.words();
  std::string script =
      "_trestle() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" path=\"\" i\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    case \"${path:+$path }${COMP_WORDS[i]}\" in\n";
  for (const auto& [path, words] : verbs)
    if (!path.empty()) script += text("      \"", path, "\") path=\"", path, "\" ;;\n");
  script += "    esac\n  done\n  local words=\"\"\n  case \"$path\" in\n";
  for (const auto& [path, words] : verbs)
    script += text("    \"", path, "\") words=\"", join(words, " "), "\" ;;\n");
  script +=
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
      "}\n"
      "complete -o default -F _trestle trestle\n";
  return script;
}

std::string for_zsh(const CommandLine& line) {
  return "autoload -U +X bashcompinit && bashcompinit\n" + for_bash(line);
}

std::string for_fish(const CommandLine& line) {
  std::string script;
  for (const auto& [path, words] : line.words()) {
    const std::vector<std::string> seen = split(path, ' ');
    const std::string when =
        path.empty() ? "__fish_use_subcommand" : text("__fish_seen_subcommand_from ", seen.back());
    for (const std::string& word : words)
      script += word.starts_with("--")
                    ? text("complete -c trestle -n '", when, "' -l ", word.substr(2), "\n")
                    : text("complete -c trestle -n '", when, "' -a ", word, "\n");
  }
  return script;
}

}  // namespace

void add_completion(Verb app, const CommandLine& line) {
  Verb verb = app.add_verb("completion", "Print a shell script that completes verbs and flags");
  auto shell = std::make_shared<std::string>();
  verb.add("shell", *shell, "bash, zsh or fish")
      .required()
      .one_of({"bash", "zsh", "fish"})
      .type("SHELL");
  verb.footer(
      examples({"trestle completion bash > ~/.local/share/bash-completion/completions/trestle",
                "source <(trestle completion zsh)",
                "trestle completion fish > ~/.config/fish/completions/trestle.fish"}) +
      exit_codes());
  verb.action([shell, &line] {
    std::cout << (*shell == "bash"  ? for_bash(line)
                  : *shell == "zsh" ? for_zsh(line)
                                    : for_fish(line))
              << std::flush;
    return 0;
  });
}

}  // namespace trestle::cli
