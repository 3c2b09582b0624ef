#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trestle/train/progress.h"

// metrics.jsonl: one JSON object a line, one line for each step and one for each epoch.
//
//     {"step": 12, "epoch": 1, "loss": 0.61}
//     {"epoch": 1, "step": 80, "training_loss": 0.41, "validation_loss": 0.38, "dice": 0.87,
//      "learning_rate": 0.001, "examples_per_second": 26.1, "seconds": 24.7}
namespace trestle::train {

class MetricsFile {
 public:
  // A new file. Throws FileError.
  explicit MetricsFile(std::filesystem::path path);

  // Goes on with a file: keeps the lines up to `step` and the closing lines of `epochs` epochs,
  // drops what a crash left behind them, a broken last line included.
  MetricsFile(std::filesystem::path path, std::int64_t step, std::int64_t epochs);

  void add_step(std::int64_t step, std::int64_t epoch, double loss);
  void add_epoch(const EpochReport& report);

 private:
  void append(const std::string& line);
  std::filesystem::path path_;
};

// The closing lines of the epochs.
std::vector<EpochReport> read_epochs(const std::filesystem::path& path);

// The loss and metric of every epoch as a chart, SVG.
std::string draw_curves(const std::vector<EpochReport>& epochs, const std::string& title);

}  // namespace trestle::train
