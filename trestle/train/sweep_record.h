#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trestle/recipe/recipe.h"
#include "trestle/train/measure.h"

// measurements.jsonl: what a sweep has measured so far, one JSON object a line for each run of each
// point. A sweep that was stopped, or is started again with more points or runs, reads it and
// measures only what is not there.
//
//     {"key": "1f0c...", "point": "pipeline.split_size = 20", "seconds": [1.21, 1.19],
//      "optimizer_seconds": 0.02, "predicted_seconds": 1.18, ...}
namespace trestle::train {

// One run of one point.
struct Measurement {
  std::string key;    // of what was measured: measurement_key()
  std::string point;  // the same in words, for people
  StepTimes times;
};

// A number for "is this the same measurement?": every field of the recipe, the numbers of steps, the
// versions of the program and of libtorch, and the machine's processor and cores.
std::string measurement_key(const recipe::Recipe& recipe, const MeasureOptions& options);

std::string to_json_line(const StepTimes& times);
// Throws FormatError for what to_json_line() cannot have written.
StepTimes times_from_json(const std::string& line);

class SweepRecord {
 public:
  // Reads the file, if there is one. A last line that a crash cut short is dropped; throws
  // FormatError, with the line's number, for anything else that is not right.
  explicit SweepRecord(std::filesystem::path path);

  // The runs of one point, in the order in which they were measured.
  std::vector<StepTimes> runs_of(const std::string& key) const;
  void add(const Measurement& measurement);  // to the file too

 private:
  std::filesystem::path path_;
  std::string lines_;
  std::vector<Measurement> measurements_;
};

}  // namespace trestle::train
