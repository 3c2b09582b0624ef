#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trestle/models/model.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/sweep_points.h"
#include "trestle/train/user_parts.h"

// Measures recipes at every point of a grid of their fields: how long is a step, and how long was it
// predicted to be?
//
//   train::SweepResult result = train::sweep(
//       {recipe::read_recipe("recipes/resnet50_pipelined.toml")},
//       {train::parse_axis("pipeline.split_size=10,20,40")},
//       {.out = "runs/resnet50_pipelined_sweep"});
//   std::cout << result.rows.at(result.best).name << " is the fastest\n";
namespace trestle::train {

struct SweepOptions {
  std::filesystem::path out;  // the folder of the results; made where it is missing
  int runs = 3;               // of each point, each in a process of its own
  int warm_up = 2;            // steps of a run before the clock runs
  int steps = 5;              // steps of a run that are timed
  models::OwnModels models = {};
  UserParts user_parts = {};
  std::function<bool()> should_stop = {};  // asked several times a second
};

// A point and what was measured of it. A run's time is the median of its steps.
struct SweepRow {
  std::string name;    // name_of() the point
  std::string recipe;  // its recipe's
  std::vector<std::string> values;
  std::vector<double> runs;       // seconds a step, one for each run
  std::vector<double> predicted;  // by the simulator, in each run; empty = not asked for
  double optimizer_seconds = 0;   // what the optimizers add to a step, the median
  int micro_batches = 0;          // 0 before the first run
  std::string devices;
  std::string error;  // why the last attempt failed

  bool measured() const { return !runs.empty(); }
  double seconds() const;  // the median of the runs
  double fastest() const;
  double slowest() const;
  double predicted_seconds() const;  // the median; 0 = none
};

struct SweepResult {
  std::vector<SweepAxis> axes;
  std::vector<SweepRow> rows;  // in the order of sweep_points()
  int best = -1;               // the row of the shortest step; -1 while nothing is measured
  bool finished = false;       // every point has its runs, or failed
  int warm_up = 0, steps = 0;

  int failed() const;
  std::vector<std::filesystem::path> files;  // that were written
};

// Told after each run: the row, how many runs are done and how many there will be.
using SweepProgress = std::function<void(const SweepRow& row, std::int64_t done, std::int64_t all)>;

// The rows with what the folder has of them already; measures nothing, writes nothing.
SweepResult plan_sweep(const std::vector<recipe::Recipe>& recipes,
                       const std::vector<SweepAxis>& axes, const SweepOptions& options);

// Measures what is missing, one run of every point after the other, so that what the machine does
// besides falls on all points alike. Each run is a copy of this process (child_process.h): call it
// before anything that uses libtorch. A point that fails says why in its row, and the others go on.
// Writes measurements.jsonl after each run, and when it ends or is stopped sweep.csv, sweep.json,
// sweep.svg and sweep.png. Throws UsageError for options that cannot be, StateError where another
// sweep works in the folder.
SweepResult sweep(const std::vector<recipe::Recipe>& recipes, const std::vector<SweepAxis>& axes,
                  const SweepOptions& options, const SweepProgress& progress = {});

}  // namespace trestle::train
