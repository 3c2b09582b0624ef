#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "trestle/train/progress/progress.h"

// metrics.jsonl: one JSON object a line, one line for each step and one for each epoch.
//
//     {"step": 12, "epoch": 1, "loss": 0.61, "learning_rate": 0.001, "gradient_norm": 2.4,
//      "peak_bytes": {"virtual:0": 222298112}}
//     {"epoch": 1, "step": 80, "training_loss": 0.41, "validation_loss": 0.38, "dice": 0.87,
//      "learning_rate": 0.001, "examples_per_second": 26.1, "seconds": 24.7}
//
// A language model's epoch has "tokens_per_second" and "model_flops_per_second" (6 N + 12 L H Q T
// for a token, language/model_flops.h), and "mfu", the share of 'peak_tflops' in [train], where it
// is set. An epoch on synthetic data has "synthetic_data": true as well.
namespace trestle::train {

// The line of one step.
struct StepMetrics {
  std::int64_t step = 0, epoch = 0;  // from 1
  double loss = 0;
  double learning_rate = 0;  // of the step
  double gradient_norm = 0;  // of all gradients together, before clipping
  // The peak of each device since the epoch began.
  std::vector<std::pair<std::string, Bytes>> peaks = {};
};

class MetricsFile {
 public:
  // A new file. Throws FileError.
  explicit MetricsFile(std::filesystem::path path);

  // Continues a file: keeps the lines up to `step` and the lines of `epochs` epochs, and drops what
  // a crash left behind them, including a broken last line.
  MetricsFile(std::filesystem::path path, std::int64_t step, std::int64_t epochs);

  void add_step(const StepMetrics& step);
  void add_epoch(const EpochReport& report);

 private:
  void append(const std::string& line);
  std::filesystem::path path_;
};

// The lines of the epochs.
std::vector<EpochReport> read_epochs(const std::filesystem::path& path);

// The loss and the metric of every epoch as a chart in SVG. The title names synthetic data.
std::string draw_curves(const std::vector<EpochReport>& epochs, const std::string& title);

}  // namespace trestle::train
