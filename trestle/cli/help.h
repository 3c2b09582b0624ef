#pragma once

#include <set>
#include <string>
#include <vector>

// The text of --help. Inside of cli; only sources that include CLI11 use it.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace trestle::cli {

enum class HelpLevel {
  Usual,
  All,  // with rare flags, and for the program itself the help of every verb
};

struct HelpOptions {
  int columns = 80;
  HelpLevel level = HelpLevel::Usual;
  std::set<const CLI::Option*> rare = {};
};

// The help of a verb or of the program. Its lines have at most `columns` columns, except where a
// word is longer.
std::string help_text(const CLI::App& app, const HelpOptions& options);

// "trestle data check".
std::string path_of(const CLI::App& app);

// "bash, zsh or fish".
std::string or_list(const std::vector<std::string>& words);

// The usual spellings of a flag: the names without '_' and '.', or the last name if there are none.
std::vector<std::string> usual_names(const CLI::Option& flag);

}  // namespace trestle::cli
