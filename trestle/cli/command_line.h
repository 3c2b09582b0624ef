#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

// Verbs and flags of the command line. Only command_line.cpp, help.cpp and parse_errors.cpp include
// CLI11.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace trestle::cli {

enum class HelpLevel;

// Runs a verb after its arguments are parsed. Returns the exit code.
using Action = std::function<int()>;

struct Range {
  std::int64_t smallest, largest;
};

// Shared by a command line and its verbs.
struct CommandState {
  Action chosen = {};
  std::set<const CLI::Option*> rare = {};       // flags that only --help-all lists
  std::set<const CLI::Option*> emptiable = {};  // flags whose value may be empty
};

// A flag that was just added; all functions return it again.
class Flag {
 public:
  Flag(CLI::App* app, CLI::Option* option, CommandState* state)
      : app_(app), option_(option), state_(state) {}

  Flag& type(const std::string& name);  // the value's name in --help, for example FILE
  Flag& required();
  Flag& one_of(const std::vector<std::string>& values);
  Flag& excludes(const std::string& flag);  // a flag of the same verb, added before
  Flag& group(const std::string& heading);  // its heading in --help
  Flag& rare();                             // --help-all lists it, --help does not
  Flag& may_be_empty();                     // see refuse_empty_values()
  Flag& one_value_each();                   // a flag with a vector: one value each time it is given

 private:
  CLI::App* app_;
  CLI::Option* option_;
  CommandState* state_;
};

// A verb: a handle that may be copied. The variables behind its flags must live as long as the
// CommandLine, for example in a shared_ptr that its action holds.
//
//   cli::Verb verb = parent.add_verb("doctor", "Show versions, devices and cores");
//   auto json = std::make_shared<bool>(false);
//   verb.add_switch("--json", *json, "Print one JSON object");
//   verb.action([json] { return diagnose(*json); });
class Verb {
 public:
  Verb(CLI::App* app, CommandState* state) : app_(app), state_(state) {}

  Verb add_verb(const std::string& name, const std::string& help);
  void require_verb();

  // `name` is "--flag", "-f,--flag", or a positional argument's name.
  Flag add(const std::string& name, std::string& value, const std::string& help);
  Flag add(const std::string& name, std::optional<std::string>& value, const std::string& help);
  Flag add(const std::string& name, std::vector<std::string>& values, const std::string& help);
  Flag add(const std::string& name, std::filesystem::path& value, const std::string& help);
  Flag add(const std::string& name, const std::function<void(const std::string&)>& set,
           const std::string& help);
  Flag add_switch(const std::string& name, bool& value, const std::string& help);
  Flag add_switch(const std::string& name, const std::function<void()>& set,
                  const std::string& help);
  // A whole number, read as recipes read theirs: 010 is ten, and a number out of the range is an
  // error. (CLI11's own numbers read 010 as eight, and wrap or clamp what is out of range.)
  Flag add_number(const std::string& name, Range range,
                  const std::function<void(std::int64_t)>& set, const std::string& help);
  void footer(const std::string& text);
  void action(Action run);

  // Whether the command line has this flag of the verb.
  bool given(const std::string& flag) const;
  // Whether the verb has this flag and it takes a value.
  bool takes_value(const std::string& flag) const;

 private:
  CLI::App* app_;
  CommandState* state_;
};

class CommandLine {
 public:
  CommandLine(const std::string& description, const std::string& name, const std::string& version);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  Verb root();  // the parent of all verbs; its footer is that of `trestle --help`
  Verb verb(const std::string& name);

  struct Parsed {
    enum class Kind { Run, Print, Error } kind = Kind::Run;
    std::string text = {};  // help or version to print, or the error
    std::string hint = {};  // the error's remedy
  };
  Parsed parse(int argc, char** argv);

  // After parse(): the name of the chosen verb and its action; "" and no action if none was given.
  std::string chosen_verb() const;
  const Action& chosen_action() const { return state_.chosen; }
  std::string help() const;
  // Throws UsageError for a flag of the chosen verb with an empty value, as of --out "$NOT_SET".
  // Fields of a recipe may be empty, which selects their default, and so may may_be_empty() flags.
  void refuse_empty_values() const;

  // For shell completion: for each verb, as "data check", the names of its flags and verbs. The
  // first entry, "", is the program itself.
  std::vector<std::pair<std::string, std::vector<std::string>>> words() const;

 private:
  std::string help_of(HelpLevel level) const;

  std::unique_ptr<CLI::App> app_;
  CommandState state_;
};

}  // namespace trestle::cli
