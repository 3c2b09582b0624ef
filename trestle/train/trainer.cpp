#include "trestle/train/trainer.h"

#include <exception>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/checkpoint_folder.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/comm/fail_on_error.h"
#include "trestle/deepspeed/config/to_recipe.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/dry_run.h"
#include "trestle/train/run_folder/environment.h"
#include "trestle/train/run_folder/metrics.h"
#include "trestle/train/run_folder/run_again.h"
#include "trestle/train/run_folder/run_end.h"
#include "trestle/train/run_folder/run_folder.h"
#include "trestle/train/run_folder/run_log.h"
#include "trestle/train/run_folder/saved_cut.h"
#include "trestle/train/run_ranks.h"
#include "trestle/train/setup.h"
#include "trestle/train/training_run.h"
#include "trestle/train/usage_check.h"

namespace trestle::train {

namespace {

// The recipe of a resumed run, and notes on its changes.
struct Changed {
  recipe::Recipe after;
  std::vector<std::string> notes;
};

// The schedule of a DeepSpeed file sets each step's rate.
void refuse_idle_rate(const recipe::Recipe& before, const recipe::Recipe& after) {
  if (after.optimizer.learning_rate == before.optimizer.learning_rate) return;
  const auto deepspeed = deepspeed::deepspeed_config_of(after);
  if (!deepspeed || !deepspeed->schedule || !deepspeed::has_rates_of_its_own(*deepspeed->schedule))
    return;
  throw UsageError(
      text("'learning_rate' in [optimizer] has no effect: the scheduler ",
           deepspeed->schedule->type, " of the run's DeepSpeed file sets the rate of each step"),
      {.hint = "Leave it out, or start a new run with another file."});
}

Changed changed(const recipe::Recipe& before,
                const std::vector<std::pair<std::string, std::string>>& changes) {
  using OnResume = recipe::Field::OnResume;
  Changed result{before, {}};
  recipe::Recipe& after = result.after;
  for (const auto& [name, value] : changes) recipe::set_field(after, name, value);
  for (const recipe::Field& field : recipe::recipe_fields()) {
    if (field.get(after) == field.get(before)) continue;
    const bool follows = field.name() == "pipeline.table";  // the schedule, which has a note
    if (follows && after.pipeline.schedule != before.pipeline.schedule) continue;
    if (field.on_resume != OnResume::MustBeEqual) {
      result.notes.push_back(text(
          "changed   ", field.name(), " = ", recipe::to_toml(field.get(after)), ", was ",
          recipe::to_toml(field.get(before)),
          field.on_resume == OnResume::ChangesNumbers ? ": results will differ from here on" : ""));
      continue;
    }
    throw UsageError(
        text("'", field.key, "' in [", field.section, "] cannot change during a run: it is ",
             recipe::to_toml(field.get(before)), ", and ", recipe::to_toml(field.get(after)),
             " was requested"),
        {.hint = "Start a new run for that."});
  }
  refuse_idle_rate(before, after);
  return result;
}

// The result of a finished run, without setting it up again.
TrainResult result_of(const RunFolder& folder, const checkpoint::TrainState& stands,
                      std::string resume_flags) {
  TrainResult result;
  result.run_folder = folder.path;
  result.finished = true;
  result.resume_flags = std::move(resume_flags);
  result.epochs = stands.epoch;
  result.steps = stands.step;
  result.best_epoch = stands.best_epoch + 1;
  if (!std::filesystem::exists(folder.metrics())) return result;
  for (const EpochReport& report : read_epochs(folder.metrics()))
    if (report.epoch == result.best_epoch && report.metric) {
      result.metric_name = report.metric_name;
      result.best_metric = report.metric;
    }
  return result;
}

void refuse_fewer_epochs(const RunFolder& folder, std::int64_t asked, std::int64_t done) {
  if (asked >= done) return;
  throw UsageError(text(folder.path.string(), ": has finished ", counted(done, "epoch"),
                        ", more than the ", asked, " requested"),
                   {.hint = text("Choose --epochs above ", done, " to continue.")});
}

// Runs to the end. A failure is also written to the log.
TrainResult run_logged(TrainingRun& run, RunLog& log) {
  try {
    return run.run();
  } catch (...) {
    log.failed(comm::error_message(std::current_exception()));
    throw;
  }
}

// A run that failed before its first step leaves nothing worth a folder.
void remove_if_nothing_began(const RunFolder& folder) {
  std::error_code none;
  const auto metrics = std::filesystem::file_size(folder.metrics(), none);
  const bool has_steps = !none && metrics > 0;
  if (!has_steps && !std::filesystem::exists(folder.last()))
    std::filesystem::remove_all(folder.path, none);
}

// The recipe of the chosen plan, if `given` leaves it to a planner. Notes why it was chosen.
recipe::Recipe planned(const recipe::Recipe& given, TrainHooks* hooks) {
  if (!given.plan.automatic || !hooks->choose_plan) return given;  // check_training() refuses it
  ChosenPlan chosen = hooks->choose_plan(given);
  if (hooks->progress != nullptr)
    for (const std::string& line : chosen.reasons) hooks->progress->note(line);
  hooks->plan_report = std::move(chosen.report);
  return std::move(chosen.recipe);
}

// `given` is the recipe as requested, before it was planned.
TrainResult train_from_start(const recipe::Recipe& given, const TrainHooks& hooks) {
  RunLog log(hooks.progress);
  TrainHooks logged = hooks;
  logged.progress = &log;
  const recipe::Recipe recipe = planned(given, &logged);
  TrainingRun run(recipe, logged);
  if (hooks.begins) hooks.begins();
  const RunRanks ranks(hooks.world);
  RunFolder folder;
  if (ranks.reports()) folder = make_run_folder(run.recipe());
  try {
    if (ranks.reports()) note_launch(folder.path, given);
    if (ranks.reports() && !logged.plan_report.empty())
      write_file(folder.plan(), logged.plan_report);
    folder.path = ranks.from_first(folder.path.string());
    run.begin(folder);
    refuse_other_folders(folder.path, ranks, "--runs");
    if (ranks.reports()) log.open(folder.log(), "began     " + utc_now());
    return run_logged(run, log);
  } catch (...) {
    if (!ranks.reports()) throw;
    remove_if_nothing_began(folder);
    throw;
  }
}

TrainResult resume_run(const std::filesystem::path& run_folder,
                       const std::vector<std::pair<std::string, std::string>>& changes,
                       const TrainHooks& hooks) {
  const RunRanks ranks(hooks.world);
  RunFolder folder = open_run_folder(run_folder);
  if (ranks.reports()) lock_run_folder(folder);
  refuse_other_folders(folder.path, ranks, "--resume");
  const auto [recipe, notes] = changed(recipe_of(folder), changes);
  if (!std::filesystem::exists(folder.last()) && !checkpoint::is_checkpoint(folder.last()))
    throw UsageError("has no checkpoint to resume",
                     {.file = folder.path.string(),
                      .hint = "A run saves the first one at the end of an epoch, every save_every "
                              "steps, or on Ctrl-C."});
  const checkpoint::TrainState stands = checkpoint::read_train_state(folder.last());
  refuse_fewer_epochs(folder, recipe.train.epochs, stands.epoch);
  EarlyStop early(recipe.train.patience, recipe.train.min_delta);
  early.load(stands.numbers);
  if (const std::string why = why_finished(recipe, stands, early); !why.empty()) {
    const TrainResult result = result_of(folder, stands, resume_flags_of(recipe, stands, early));
    if (hooks.progress == nullptr) return result;
    hooks.progress->note(text("nothing to do: ", folder.path.string(), " ", why));
    hooks.progress->done(result);
    return result;
  }
  RunLog log(hooks.progress);
  TrainHooks logged = hooks;
  logged.progress = &log;
  return with_sizes_named(recipe, [&, &recipe = recipe, &notes = notes] {
    TrainingRun run(recipe, logged, &folder);
    run.restore(folder);
    if (hooks.begins) hooks.begins();
    if (ranks.reports()) {
      log.open(folder.log(),
               text("resumed   ", utc_now(), ", after ", counted(stands.step, "step")));
      for (const std::string& note : notes) log.note(note);
      const std::vector<int> saved = saved_cut(stands.numbers);
      if (!saved.empty() && saved != run.cut())
        log.note(text("changed   the cut is [", join(run.cut(), ", "), "], was [",
                      join(saved, ", "), "]: results may differ in their last bits"));
      write_file(folder.recipe(), to_toml(run.recipe()));  // with the table that it runs
    }
    return run_logged(run, log);
  });
}

// Restarted ranks resume from their checkpoint. Without a checkpoint they start again, and the
// folder that they began is removed. Returns the folder to resume, or "".
std::string run_before_restart(const recipe::Recipe& recipe, const TrainHooks& hooks) {
  // The only rank of a launch has no world and may be restarted too.
  if (hooks.world == nullptr ? !is_started_anew() : hooks.world->restart() == 0) return "";
  const RunRanks ranks(hooks.world);
  std::string begun;
  if (ranks.reports()) {
    const auto folder = folder_of_launch(recipe);
    if (folder && checkpoint::is_checkpoint(RunFolder{*folder}.last())) begun = folder->string();
    if (folder && begun.empty()) std::filesystem::remove_all(*folder);
  }
  return ranks.from_first(begun);
}

// Sends an error of one rank to all ranks.
template <class Call>
TrainResult together(const TrainHooks& hooks, const Call& call) {
  if (hooks.world == nullptr) return call();
  try {
    return call();
  } catch (...) {
    fail_ranks(*hooks.world, std::current_exception());
    throw;
  }
}

}  // namespace

TrainResult train(const recipe::Recipe& recipe, const TrainHooks& hooks) {
  check_run_name(recipe.name);
  return together(hooks, [&] {
    const std::string begun = run_before_restart(recipe, hooks);
    if (!begun.empty()) return resume_run(begun, {}, hooks);
    return with_sizes_named(recipe, [&] { return train_from_start(recipe, hooks); });
  });
}

TrainResult resume(const std::filesystem::path& run_folder,
                   const std::vector<std::pair<std::string, std::string>>& changes,
                   const TrainHooks& hooks) {
  return together(hooks, [&] { return resume_run(run_folder, changes, hooks); });
}

RunPlan plan_run(const recipe::Recipe& recipe, const TrainHooks& hooks) {
  check_run_name(recipe.name);
  TrainHooks own = hooks;
  const recipe::Recipe run = planned(recipe, &own);
  RunPlan plan = with_sizes_named(run, [&] { return plan_on_paper(run, own); });
  if (hooks.progress != nullptr) hooks.progress->plan(plan);
  return plan;
}

}  // namespace trestle::train
