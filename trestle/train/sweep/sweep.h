#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trestle/base/overwrite.h"
#include "trestle/models/model.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/data_sets/user_parts.h"
#include "trestle/train/sweep/sweep_points.h"

// Measures the duration of a step of recipes at every point of a grid of their fields, beside the
// predicted one.
//
//   train::SweepResult result = train::sweep(
//       {recipe::read_recipe("recipes/resnet50_pipelined.toml")},
//       {train::parse_axis("pipeline.split_size=10,20,40")},
//       {.out = "runs/resnet50_pipelined_sweep"});
//   std::cout << result.rows.at(result.best).name << " is the fastest\n";
namespace trestle::train {

struct SweepOptions {
  std::filesystem::path out;  // the folder of the results; created if missing
  // Whether files in a folder that no sweep has made may be replaced. The results of an earlier
  // sweep are always updated.
  Overwrite overwrite = Overwrite::Refuse;
  int runs = 3;     // for each point, each in a process of its own
  int warm_up = 2;  // steps of a run that are not timed
  int steps = 5;    // steps of a run that are timed
  models::OwnModels models = {};
  UserParts user_parts = {};
  std::function<bool()> should_stop = {};  // called several times a second
};

// A point and its measurements. The time of a run is the median of its steps.
struct SweepRow {
  std::string name;    // name_of() of the point
  std::string recipe;  // the name of its recipe
  std::vector<std::string> values;
  std::vector<double> runs;       // seconds a step, one for each run
  std::vector<double> predicted;  // by the simulator, in each run; empty = not set
  double optimizer_seconds = 0;   // of the update at the end of a step, the median
  int micro_batches = 0;          // 0 before the first run
  std::string schedule;           // its name; of "auto" what the latest run's search took
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
  std::vector<std::filesystem::path> files;  // written
};

// Called after each run with the row, the number of runs done and their total. A point that fails
// is not tried again: all its missing runs count as done.
using SweepProgress = std::function<void(const SweepRow& row, std::int64_t done, std::int64_t all)>;

// Reads the rows with the measurements that the folder has; measures and writes nothing.
SweepResult plan_sweep(const std::vector<recipe::Recipe>& recipes,
                       const std::vector<SweepAxis>& axes, const SweepOptions& options);

// Measures the missing runs: one run of every point after the other, so that other load on the
// machine falls on all points alike. Each run is a copy of this process (child_process.h): call
// sweep() before anything that uses libtorch. The row of a point that fails has the error, and the
// sweep continues with the next point. Throws UsageError if the folder has files of the results'
// names and no measurements, unless options.overwrite allows to replace them. Writes
// measurements.jsonl after each run, and sweep.csv, sweep.json, sweep.svg and sweep.png when it
// ends or is stopped. Throws UsageError for invalid options, StateError where another sweep uses
// the folder.
SweepResult sweep(const std::vector<recipe::Recipe>& recipes, const std::vector<SweepAxis>& axes,
                  const SweepOptions& options, const SweepProgress& progress = {});

}  // namespace trestle::train
