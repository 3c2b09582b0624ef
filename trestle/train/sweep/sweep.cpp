#include "trestle/train/sweep/sweep.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <system_error>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/file_lock.h"
#include "trestle/base/median.h"
#include "trestle/base/text.h"
#include "trestle/train/run_folder/result_files.h"
#include "trestle/train/sweep/child_process.h"
#include "trestle/train/sweep/sweep_files.h"
#include "trestle/train/sweep/sweep_record.h"

namespace trestle::train {

namespace {

constexpr const char* measurements_file = "measurements.jsonl";

void check_sweep(const SweepOptions& options) {
  if (options.runs < 1 || options.steps < 1 || options.warm_up < 0)
    throw UsageError(text("a sweep of ", counted(options.runs, "run"), " of ",
                          counted(options.steps, "step"), " after ", options.warm_up,
                          " to warm up: at least 1, 1 and 0 are needed"));
  if (options.out.empty()) throw UsageError("a sweep needs a folder for its results");
}

void add_run(SweepRow& row, const StepTimes& times) {
  row.runs.push_back(median(times.seconds));
  if (times.predicted_seconds > 0) row.predicted.push_back(times.predicted_seconds);
  row.optimizer_seconds = times.optimizer_seconds;
  row.micro_batches = times.micro_batches;
  row.schedule = times.schedule;
  row.devices = times.devices;
  row.error.clear();
}

void find_best(SweepResult& result) {
  result.best = -1;
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const SweepRow& row = result.rows[i];
    if (row.measured() &&
        (result.best < 0 ||
         row.seconds() < result.rows[static_cast<std::size_t>(result.best)].seconds()))
      result.best = static_cast<int>(i);
  }
}

FileLock lock_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FileError(text("cannot be made: ", error.message()), {.file = folder.string()});
  std::optional<FileLock> lock = FileLock::try_lock(folder / ".lock");
  if (!lock)
    throw StateError(text(folder.string(), ": another sweep uses this folder"),
                     {.hint = "Wait until it has ended, or choose another folder with --out."});
  return std::move(*lock);
}

// Without measurements the folder is none of a sweep's.
void refuse_files_of_others(const SweepOptions& options) {
  if (std::filesystem::exists(options.out / measurements_file)) return;
  refuse_replacing(sweep_files(options.out), options.overwrite, "--out");
}

std::string measured_line(const recipe::Recipe& recipe, const MeasureOptions& options) {
  try {
    return to_json_line(measure_steps(recipe, options));
  } catch (const c10::Error& error) {
    throw Error(error.what_without_backtrace());  // without libtorch's stack
  }
}

// A running sweep: its points and the file of its measurements.
class Sweep {
 public:
  Sweep(const std::vector<recipe::Recipe>& recipes, const std::vector<SweepAxis>& axes,
        const SweepOptions& options)
      : options_(options),
        measure_{.warm_up = options.warm_up,
                 .steps = options.steps,
                 .models = options.models,
                 .user_parts = options.user_parts},
        points_(sweep_points(recipes, axes)),
        record_(options.out / measurements_file) {
    result_.axes = axes;
    result_.warm_up = options.warm_up;
    result_.steps = options.steps;
    for (const SweepPoint& point : points_) {
      SweepRow row;
      row.name = name_of(point, axes, recipes.size() > 1 ? RecipeName::Show : RecipeName::Hide);
      row.recipe = point.recipe.name;
      row.values = point.values;
      keys_.push_back(measurement_key(point.recipe, measure_));
      for (const StepTimes& times : record_.runs_of(keys_.back()))
        if (static_cast<int>(row.runs.size()) < options.runs) add_run(row, times);
      done_ += static_cast<std::int64_t>(row.runs.size());
      result_.rows.push_back(std::move(row));
    }
    find_best(result_);
  }

  void run(const SweepProgress& progress) {
    result_.finished = true;
    for (int round = 0; round < options_.runs && result_.finished; ++round)
      for (std::size_t i = 0; i < points_.size() && result_.finished; ++i) {
        SweepRow& row = result_.rows[i];
        if (static_cast<int>(row.runs.size()) > round || !row.error.empty()) continue;
        if (!measure(i)) {
          result_.finished = false;
        } else if (progress) {
          progress(row, done_, all());
        }
      }
    find_best(result_);
  }

  SweepResult& result() { return result_; }

 private:
  // Returns false if it was stopped.
  bool measure(std::size_t i) {
    SweepRow& row = result_.rows[i];
    const auto child = in_child_process([&] { return measured_line(points_[i].recipe, measure_); },
                                        options_.should_stop);
    if (!child) return false;
    if (!child->error.empty()) {
      row.error = child->error;
      done_ += options_.runs - static_cast<std::int64_t>(row.runs.size());
      return true;
    }
    const StepTimes times = times_from_json(child->output);
    record_.add({.key = keys_[i], .point = row.name, .times = times});
    add_run(row, times);
    ++done_;
    return true;
  }

  std::int64_t all() const { return static_cast<std::int64_t>(points_.size()) * options_.runs; }

  const SweepOptions& options_;
  MeasureOptions measure_;
  std::vector<SweepPoint> points_;
  std::vector<std::string> keys_;
  SweepRecord record_;
  SweepResult result_;
  std::int64_t done_ = 0;  // runs that were measured, or are left out since their point failed
};

}  // namespace

double SweepRow::seconds() const { return median(runs); }
double SweepRow::fastest() const {
  return runs.empty() ? 0 : *std::min_element(runs.begin(), runs.end());
}
double SweepRow::slowest() const {
  return runs.empty() ? 0 : *std::max_element(runs.begin(), runs.end());
}
double SweepRow::predicted_seconds() const { return median(predicted); }

int SweepResult::failed() const {
  return static_cast<int>(std::count_if(rows.begin(), rows.end(),
                                        [](const SweepRow& row) { return !row.error.empty(); }));
}

SweepResult plan_sweep(const std::vector<recipe::Recipe>& recipes,
                       const std::vector<SweepAxis>& axes, const SweepOptions& options) {
  check_sweep(options);
  refuse_files_of_others(options);
  return Sweep(recipes, axes, options).result();
}

SweepResult sweep(const std::vector<recipe::Recipe>& recipes, const std::vector<SweepAxis>& axes,
                  const SweepOptions& options, const SweepProgress& progress) {
  check_sweep(options);
  refuse_files_of_others(options);
  sweep_points(recipes, axes);  // what is wrong with them, before a folder is made
  const FileLock lock = lock_folder(options.out);
  Sweep work(recipes, axes, options);
  work.run(progress);
  SweepResult& result = work.result();
  if (result.best >= 0) result.files = write_sweep_files(result, options.out);
  return std::move(result);
}

}  // namespace trestle::train
