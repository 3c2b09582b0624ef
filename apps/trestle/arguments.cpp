#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "apps/trestle/verbs.h"
#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/is_checkpoint.h"

namespace trestle::app {

namespace fs = std::filesystem;

namespace {

const CLI::App& chosen(const CLI::App& app) {
  const auto verbs = app.get_subcommands();
  return verbs.empty() ? app : chosen(*verbs[0]);
}

}  // namespace

std::string unknown_argument(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App& verb = chosen(app);
  const std::string word = words.empty() ? "" : split(words[0], '=')[0];
  std::vector<std::string> known;
  if (!word.empty() && word[0] == '-') {
    for (const CLI::Option* option : verb.get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  } else {
    for (const CLI::App* inner : verb.get_subcommands([](const CLI::App*) { return true; }))
      known.push_back(inner->get_name());
  }
  const std::string path = verb.get_parent() == nullptr ? "trestle" : "trestle " + verb.get_name();
  const std::string what = word[0] == '-'  ? "unknown flag"
                           : known.empty() ? "did not expect"
                                           : "unknown verb";
  if (std::find(known.begin(), known.end(), word) != known.end())
    return text("'", word, "' stands behind '--', where flags are none: write it before. See ",
                path, " --help.");
  const std::string meant = did_you_mean(word, known);
  return text(what, " '", word, "'", meant.empty() ? "." : meant, " See ", path, " --help.");
}

CLI::Option* add_number(CLI::App& verb, const std::string& flag, Range range,
                        const std::function<void(std::int64_t)>& set, const std::string& help) {
  const auto read = [flag, range, set](const std::string& word) {
    std::int64_t number = 0;
    const char* const end = word.data() + word.size();
    const auto [behind, error] = std::from_chars(word.data(), end, number);
    if (error != std::errc() || behind != end || number < range.smallest || number > range.largest)
      throw CLI::ValidationError(text(flag, " is a whole number from ", range.smallest, " to ",
                                      range.largest, ", not '", word, "'"));
    set(number);
  };
  return verb.add_option_function<std::string>(flag, read, help);
}

namespace {

// The name of it that people use: the last but for one with '_' in it.
std::string flag_as_typed(const CLI::App& verb, const std::string& first) {
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_name() != first) continue;
    for (const std::string& name : option->get_lnames())
      if (name.find('.') == std::string::npos && name.find('_') == std::string::npos)
        return "--" + name;
  }
  return first;
}

}  // namespace

std::string count_mismatch(const CLI::App& app, const std::string& what) {
  const std::string first = what.substr(0, what.find(':'));
  if (!first.starts_with("--")) return what;
  const std::string flag = flag_as_typed(chosen(app), first);
  if (what.ends_with("missing")) return text(flag, " needs a value: ", flag, " VALUE");
  if (what.find("At Most 1 required") != std::string::npos)
    return text(flag, " is given more than once");
  return what;
}

std::string field_group(const std::string& section) { return "[" + section + "] of the recipe"; }

void refuse_empty_values(const CLI::App& app) {
  const CLI::App& verb = chosen(app);
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_group().starts_with("[")) continue;
    for (const std::string& value : option->results())
      if (value.empty())
        throw UsageError(text(option->get_name(), " is empty"),
                         {.hint = "Leave it out, or give it a value."});
  }
}

void refuse_without_effect(const CLI::App& verb, const std::vector<std::string>& flags,
                           const std::string& form) {
  std::vector<std::string> given;
  for (const std::string& flag : flags)
    if (verb.get_option(flag)->count() > 0) given.push_back(flag);
  if (given.empty()) return;
  throw UsageError(
      text(join(given, " and "), given.size() == 1 ? " has" : " have", " no effect ", form),
      {.hint = text("Leave ", given.size() == 1 ? "it" : "them", " out.")});
}

void add_checkpoint_flag(CLI::App& verb, train::Checkpoint& which) {
  verb.add_option_function<std::string>(
          "--checkpoint",
          [&which](const std::string& word) {
            which = word == "last" ? train::Checkpoint::Last : train::Checkpoint::Best;
          },
          "Which weights of a run folder: best (the default) or last")
      ->check(CLI::IsMember({"best", "last"}))
      ->type_name("WHICH");
}

void refuse_checkpoint_of_file(const CLI::App& verb, const fs::path& weights) {
  if (fs::is_regular_file(weights) || checkpoint::is_checkpoint(weights))
    refuse_without_effect(verb, {"--checkpoint"}, "with " + weights.string());
}

void need_file(const fs::path& path, const std::string& flag) {
  if (!fs::exists(path) || fs::is_directory(path))
    throw UsageError(text(flag, ": there is no file '", path.string(), "'"));
}

void need_folder(const fs::path& path, const std::string& flag) {
  if (!fs::is_directory(path))
    throw UsageError(text(flag, ": there is no folder '", path.string(), "'"));
}

void need_folder_for(const fs::path& file, const std::string& flag) {
  if (fs::is_directory(file))
    throw UsageError(text(flag, " ", file.string(), ": is a folder, and a file is to be written"));
  const fs::path folder = file.parent_path();
  if (folder.empty() || fs::is_directory(folder)) return;
  throw UsageError(text(flag, " ", file.string(), ": there is no folder '", folder.string(), "'"),
                   {.hint = text("Make it first: mkdir -p ", folder.string())});
}

std::string exit_codes() {
  return "Exit codes: 0 done; 1 it failed; 2 asked for something that cannot be (a flag, a recipe, "
         "a value,\na file that is not there); 130 after Ctrl-C, 143 after SIGTERM,\n129 after "
         "SIGHUP.";
}

std::string examples(const std::vector<std::string>& lines) {
  std::string out = "Examples:\n";
  for (const std::string& line : lines) out += "  " + line + "\n";
  return out;
}

}  // namespace trestle::app
