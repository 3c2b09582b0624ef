#include "trestle/cli/plan_verify.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/shell_word.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/cli/interrupt.h"
#include "trestle/launch/run_program.h"
#include "trestle/plan/verify/measured_line.h"
#include "trestle/plan/verify/verify_report.h"
#include "trestle/train/progress/bar.h"

namespace trestle::cli {

namespace {

// The recipes of the runs, in TMPDIR; removed at the end. A launcher's machines all read them.
class RecipeFolder {
 public:
  RecipeFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "trestle_verify_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw FileError("cannot be made", {.file = name, .hint = "Set TMPDIR to another folder."});
    path_ = name;
  }
  ~RecipeFolder() {
    std::error_code none;
    std::filesystem::remove_all(path_, none);
  }
  RecipeFolder(const RecipeFolder&) = delete;
  RecipeFolder& operator=(const RecipeFolder&) = delete;

  std::string write(std::size_t number, const std::string& recipe) const {
    const auto file = path_ / text("plan_", number + 1, ".toml");
    write_file(file, recipe);
    return file.string();
  }

 private:
  std::filesystem::path path_;
};

std::string replaced_all(std::string words, std::string_view from, std::string_view with) {
  for (std::size_t at = 0; (at = words.find(from, at)) != std::string::npos; at += with.size())
    words.replace(at, from.size(), with);
  return words;
}

// The program and the arguments of a plan's run. A shell reads the launcher, and with it the user's
// quotes.
std::vector<std::string> command_of_plan(const RunnablePlan& plan, const std::string& file,
                                         const VerifyArguments& arguments) {
  std::vector<std::string> train = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                    "train",
                                    file,
                                    "--measure",
                                    text(arguments.steps),
                                    "--json"};
  if (plan.ranks.empty()) return train;
  if (arguments.launcher.empty()) {
    train.insert(train.end(), {"--ranks", plan.ranks});
    return train;
  }
  const std::string launcher = replaced_all(trim(arguments.launcher), "{ranks}", plan.ranks);
  std::vector<std::string> words = {"/bin/sh", "-c", launcher + " \"$@\"", "sh"};
  words.insert(words.end(), train.begin(), train.end());
  return words;
}

// Why a run failed: what it printed to its standard error, or how it ended.
std::string failure_of(const launch::ProgramEnd& end) {
  std::string words = trim(end.errors);
  constexpr std::string_view name = "trestle: ";
  if (words.starts_with(name)) words.erase(0, name.size());
  return words.empty() ? text("the run ", launch::describe(end.status)) : words;
}

std::optional<plan::MeasuredRun> run_plan(const std::vector<std::string>& words) {
  const auto end = launch::run_program(words, interrupted);
  if (!end) return std::nullopt;
  if (!end->status.success()) return plan::MeasuredRun{.error = failure_of(*end)};
  try {
    return plan::measured_run_of(end->output);
  } catch (const FormatError& error) {
    return plan::MeasuredRun{.error = error.what()};
  }
}

std::vector<plan::Residual> saved_residuals(const std::string& file, const plan::Residual& here) {
  if (!std::filesystem::exists(file)) return {};
  auto residuals = plan::parse_residuals(read_file(file), file);
  plan::check_residuals(residuals, here, file);
  return residuals;
}

void save_residuals(const std::string& file, const plan::Verification& verification,
                    const plan::Residual& here, bool json) {
  std::vector<plan::Residual> residuals = saved_residuals(file, here);
  const auto more = plan::residuals_of(verification, here);
  residuals.insert(residuals.end(), more.begin(), more.end());
  write_file(file, plan::to_json_lines(residuals));
  if (json || residuals.empty()) return;
  const plan::Figure spread = plan::spread_of(residuals);
  std::cout << "wrote " << file << "      " << counted(std::ssize(residuals), "measured step")
            << " · a range of " << std::lround(100 * spread.value) << " %, " << spread.from << "\n"
            << "take it: trestle plan RECIPE --residuals " << shell_word(file) << "\n";
}

// One process runs all stages of a pipeline without a mesh.
void note_plans_without_launcher(const std::vector<RunnablePlan>& plans) {
  for (std::size_t i = 0; i < plans.size(); ++i)
    if (plans[i].ranks.empty())
      std::cout << "plan " << i + 1 << " runs in one process, without the launcher\n";
}

}  // namespace

std::string run_words(const std::string& file, const std::string& ranks) {
  return text("trestle train ", shell_word(file), ranks.empty() ? "" : " --ranks " + ranks);
}

void check_residuals_to_save(const VerifyArguments& arguments, const plan::Residual& here) {
  if (!arguments.save_residuals.empty()) saved_residuals(arguments.save_residuals, here);
}

int verify_and_print(const std::vector<RunnablePlan>& plans, const VerifyArguments& arguments,
                     const plan::Machine& machine, const plan::Residual& here, bool json) {
  if (!arguments.launcher.empty() && !json) note_plans_without_launcher(plans);
  std::cout << std::flush;
  const RecipeFolder folder;
  std::vector<std::vector<std::string>> commands;
  std::vector<plan::VerifiedPlan> predicted;
  for (const RunnablePlan& one : plans) {
    commands.push_back(command_of_plan(one, folder.write(commands.size(), one.recipe), arguments));
    predicted.push_back(one.plan);
  }
  stop_on_interrupt("The run is ended, and what was measured so far is printed.");
  const auto count = json ? nullptr : train::count_bar("run");
  const plan::Verification verification =
      plan::verify_plans(std::move(predicted),
                         {.rounds = static_cast<int>(arguments.rounds),
                          .should_stop = interrupted,
                          .progress =
                              [&](std::size_t, std::int64_t done, std::int64_t all) {
                                if (count) count(done, all);
                              }},
                         [&](std::size_t number) { return run_plan(commands[number]); });
  const auto all = std::ssize(plans) * arguments.rounds;
  if (count) count(all, all);  // removes the bar
  if (json)
    std::cout << plan::verify_json(verification, machine) << "\n";
  else
    std::cout << "\n"
              << plan::verify_report(verification, machine, columns_for_text(STDOUT_FILENO));
  if (!arguments.save_residuals.empty())
    save_residuals(arguments.save_residuals, verification, here, json);
  std::cout << std::flush;
  if (!verification.finished) return interrupted_exit_code();
  for (const plan::VerifiedPlan& plan : verification.plans)
    if (!plan.error.empty()) return 1;
  return 0;
}

}  // namespace trestle::cli
