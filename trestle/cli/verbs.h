#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/overwrite.h"
#include "trestle/cli/command_line.h"
#include "trestle/run.h"
#include "trestle/train/run_folder/run_checkpoint.h"

// The verbs of the command line, each in a source of its own, and what they share.
namespace trestle::train {
struct UserParts;
}

namespace trestle::cli {

// `words` are all words of the command line after the program's name.
void add_train(Verb app, const RunOptions& options, const std::vector<std::string>& words);
void add_evaluate(Verb app, const RunOptions& options, const std::vector<std::string>& words);
void add_predict(Verb app, const RunOptions& options);
void add_generate(Verb app, const std::vector<std::string>& words);
void add_text(Verb app);
void add_view(Verb app, const RunOptions& options);
void add_balance(Verb app, const RunOptions& options);
void add_plan(Verb app, const RunOptions& options);
void add_choose(Verb app, const RunOptions& options);
void add_schedules(Verb app, const RunOptions& options);
void add_calibrate(Verb app, const std::vector<std::string>& words);
void add_sweep(Verb app, const RunOptions& options);
void add_levels(Verb app, const RunOptions& options);
void add_data(Verb app, const RunOptions& options);
void add_export(Verb app);
void add_doctor(Verb app, const RunOptions& options);
void add_recipe(Verb app, const RunOptions& options);
// `command` is the program to launch and its arguments, filled in by take_command().
void add_launch(Verb app, const std::vector<std::string>& command);
// If the verb is launch: moves the program and its arguments to `command`. They begin after "--",
// or at the first word that is neither a flag nor a flag's value. Returns the number of remaining
// words.
int take_command(CommandLine& line, int argc, char** argv, std::vector<std::string>& command);
// Completes the verbs that `line` has when the script is printed.
void add_completion(Verb app, const CommandLine& line);

// The data sets, losses and metrics that the program adds.
train::UserParts user_parts_of(const RunOptions& options);

// Fields of a recipe that flags have set: name and value, as for recipe::set_field().
using FieldChanges = std::vector<std::pair<std::string, std::string>>;

// Adds a flag for each field of a recipe, or for those in `only`. `changes` must live as long as
// the verb.
void add_field_flags(Verb verb, FieldChanges& changes, const RunOptions& options,
                     const std::vector<std::string>& only = {});

// Throws UsageError if one of these flags was given. `form` is the use of the verb in which they
// have no effect, for example "with --csv".
void refuse_without_effect(const Verb& verb, const std::vector<std::string>& flags,
                           const std::string& form);

// Adds --checkpoint best|last. `which` must be Best before.
void add_checkpoint_flag(Verb verb, train::Checkpoint& which);

// Adds --adapter FOLDER, of verbs that open a language model.
void add_adapter_option(Verb verb, std::filesystem::path& folder);

// Throws UsageError for a --checkpoint with `weights` that already are one checkpoint: a file, or
// the folder last/ of a run.
void refuse_checkpoint_of_file(const Verb& verb, const std::filesystem::path& weights);

// Throw UsageError if the file or folder does not exist, or the folder of a file that will be
// written. A named pipe is no file. `flag` is the flag with the path.
void need_file(const std::filesystem::path& path, const std::string& flag);
void need_folder(const std::filesystem::path& path, const std::string& flag);
void need_folder_for(const std::filesystem::path& file, const std::string& flag);

// Throws UsageError for the name of a file that will be written without this ending, such as
// ".csv". An empty name is allowed.
void need_ending(const std::filesystem::path& file, const std::string& ending,
                 const std::string& flag);

// Throws UsageError where two of these flags name one file. Each pair is a file, which may be
// empty, and its flag.
void refuse_one_file(const std::vector<std::pair<std::string, std::string>>& files);

// A number, "1.5"; nothing for any other word.
std::optional<double> number_in(const std::string& word);

// Adds --overwrite. `overwrite` must be Refuse before.
void add_overwrite_flag(Verb verb, Overwrite& overwrite);

// The heading in --help for flags that are fields of a recipe's [section].
std::string field_group(const std::string& section);

// The line on exit codes at the end of every --help.
std::string exit_codes();

// The examples at the end of a verb's --help.
std::string examples(const std::vector<std::string>& lines);

}  // namespace trestle::cli
