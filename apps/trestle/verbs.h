#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/run.h"
#include "trestle/train/run_checkpoint.h"

// Inside of the command line: each verb adds itself in a file of its own and does one thing.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace trestle::train {
struct UserParts;
}

namespace trestle::app {

// What the program does once the arguments are read; the chosen verb
// sets it. Returns the exit code.
using Action = std::function<int()>;

// `words` are all that the command was given.
void add_train(CLI::App& app, Action& action, const RunOptions& options,
               const std::vector<std::string>& words);
void add_evaluate(CLI::App& app, Action& action, const RunOptions& options);
void add_predict(CLI::App& app, Action& action, const RunOptions& options);
void add_view(CLI::App& app, Action& action);
void add_balance(CLI::App& app, Action& action, const RunOptions& options);
void add_sweep(CLI::App& app, Action& action, const RunOptions& options);
void add_levels(CLI::App& app, Action& action, const RunOptions& options);
void add_data(CLI::App& app, Action& action, const RunOptions& options);
void add_export(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action, const RunOptions& options);
void add_recipe(CLI::App& app, Action& action, const RunOptions& options);
// `command` is the program to launch and its arguments, which no flag of trestle's can be among.
void add_launch(CLI::App& app, Action& action, const std::vector<std::string>& command);
// Where `argv` is of the verb launch: takes from it the program and its arguments, which begin at the first
// word that is no flag nor a flag's value, or behind "--". Returns how many words are left.
int take_command(const CLI::App& app, int argc, char** argv, std::vector<std::string>& command);
// Of all verbs that are there when it is asked for.
void add_completion(CLI::App& app, Action& action);

// What the program brings beside models.
train::UserParts user_parts_of(const RunOptions& options);

// Fields of a recipe that flags have set, by name, as recipe::set_field() takes them.
using FieldChanges = std::vector<std::pair<std::string, std::string>>;

// A flag for each field of a recipe, or for those named. `changes` must live as long as the verb.
void add_field_flags(CLI::App& verb, FieldChanges& changes, const RunOptions& options,
                     const std::vector<std::string>& only = {});

// "trestle train: unknown flag --epoch; did you mean '--epochs'?" for the
// first word that no verb knows.
std::string unknown_argument(const CLI::App& app, const std::vector<std::string>& words);

// A flag that takes a whole number, read as recipes read theirs: 010 is ten, and what is out of the
// range is refused. CLI11's own takes 010 for eight, -1 for 18446744073709551615 where a number has
// no sign, and one that is too large for the largest there is.
struct Range {
  std::int64_t smallest, largest;
};
CLI::Option* add_number(CLI::App& verb, const std::string& flag, Range range,
                        const std::function<void(std::int64_t)>& set, const std::string& help);

// "--epochs needs a value", "--epochs is given more than once": `what` is CLI11's own sentence, which
// begins with the flag's first name and may be of another kind; then it is returned as it is.
std::string count_mismatch(const CLI::App& app, const std::string& what);

// Throws UsageError for a value of the chosen verb that is there and empty, as --out "$NOT_SET" is.
// Fields of a recipe may be: "" is their own default.
void refuse_empty_values(const CLI::App& app);

// Throws UsageError for any of these flags that was given: `form` is a way to use the verb in which
// they would do nothing, as "with --csv".
void refuse_without_effect(const CLI::App& verb, const std::vector<std::string>& flags,
                           const std::string& form);

// --checkpoint best, which `which` is to begin with, or --checkpoint last.
void add_checkpoint_flag(CLI::App& verb, train::Checkpoint& which);

// Throws UsageError for a --checkpoint that was given where `weights` is a file, or the folder last/
// of a run: what they are is said already.
void refuse_checkpoint_of_file(const CLI::App& verb, const std::filesystem::path& weights);

// Throws UsageError where there is no such file or folder, or the folder that a file is to be
// written into is missing. `flag` is what named it.
void need_file(const std::filesystem::path& path, const std::string& flag);
void need_folder(const std::filesystem::path& path, const std::string& flag);
void need_folder_for(const std::filesystem::path& file, const std::string& flag);

// The heading of a flag's group in --help when it is a field of a recipe's [section].
std::string field_group(const std::string& section);

// The one rule for exit codes, as every --help says it.
std::string exit_codes();

// The examples at the end of a verb's --help.
std::string examples(const std::vector<std::string>& lines);

}  // namespace trestle::app
