#include <CLI/CLI.hpp>

#include "apps/trestle/verbs.h"
#include "trestle/base/choose.h"
#include "trestle/base/text.h"

namespace trestle::app {

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
  return text(what, " '", word, "'", did_you_mean(word, known), " See ", path, " --help.");
}

std::string examples(const std::vector<std::string>& lines) {
  std::string out = "Examples:\n";
  for (const std::string& line : lines) out += "  " + line + "\n";
  return out;
}

}  // namespace trestle::app
