#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trestle/recipe/recipe.h"
#include "trestle/train/measure.h"

// measurements.jsonl: the measurements of a sweep so far, one JSON object a line for each run of
// each point. A sweep that was stopped, or is started again with more points or runs, reads it and
// measures only what is missing.
//
//     {"key": "1f0c...", "point": "pipeline.split_size = 20", "seconds": [1.21, 1.19],
//      "optimizer_seconds": 0.02, "predicted_seconds": 1.18, ...}
namespace trestle::train {

// One run of one point.
struct Measurement {
  std::string key;    // measurement_key()
  std::string point;  // the name of the point
  StepTimes times;
};

// Identifies a measurement: a hash of every field of the recipe, the numbers of steps, the versions
// of the program and of libtorch, and the processor and cores of the machine.
std::string measurement_key(const recipe::Recipe& recipe, const MeasureOptions& options);

std::string to_json_line(const StepTimes& times);
// Throws FormatError for a line that to_json_line() cannot have written.
StepTimes times_from_json(const std::string& line);

class SweepRecord {
 public:
  // Reads the file, if it exists. A last line that a crash cut short is dropped. Throws
  // FormatError, with the number of the line, for any other mistake.
  explicit SweepRecord(std::filesystem::path path);

  // The runs of one point, in the order in which they were measured.
  std::vector<StepTimes> runs_of(const std::string& key) const;
  void add(const Measurement& measurement);  // also to the file

 private:
  std::filesystem::path path_;
  std::string lines_;
  std::vector<Measurement> measurements_;
};

}  // namespace trestle::train
