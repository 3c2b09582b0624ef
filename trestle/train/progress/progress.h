#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/train/progress/run_plan.h"

// Reports of a running training.
namespace trestle::train {

// The speed of training a language model.
struct TokenRate {
  double tokens_per_second = 0;
  // The model's floating-point operations for a token, by its sizes (language/model_flops.h).
  double flops_per_token = 0;  // 0 = unknown, as in validation
  double peak_flops = 0;       // per second, of all devices together; 0 = unknown

  double flops() const { return tokens_per_second * flops_per_token; }  // per second
  // Model FLOPs utilisation: the share of the peak. Nothing without both.
  std::optional<double> utilisation() const;
};

// One batch of training or of validation.
struct StepReport {
  std::int64_t epoch = 0, epochs = 0;   // from 1
  std::int64_t step = 0, steps = 0;     // batches of the epoch, or of its validation, from 1
  double loss = 0;                      // of this batch; in validation the mean so far
  double examples_per_second = 0;       // 0 = not measured yet
  std::int64_t tokens_per_example = 0;  // of language models
  double flops_per_token = 0;           // TokenRate, of training
  double peak_flops = 0;                // TokenRate
  double learning_rate = 0;             // of training
  // Estimated for this epoch's training, or for this validation; nothing before a measurement.
  std::optional<double> seconds_left = {};
  // The same for the whole run with its validations.
  std::optional<double> run_seconds_left = {};
};

struct EpochReport {
  std::int64_t epoch = 0, epochs = 0;  // from 1
  std::int64_t step = 0;               // of the run
  std::int64_t steps = 0;              // of the epoch
  double training_loss = 0;            // weighted mean over the epoch
  std::optional<double> validation_loss;
  std::string metric_name;
  std::optional<double> metric;
  double learning_rate = 0;
  double examples_per_second = 0;       // training alone
  std::int64_t tokens_per_example = 0;  // of language models
  double flops_per_token = 0;           // TokenRate, of training
  double peak_flops = 0;                // TokenRate
  double seconds = 0;                   // the epoch with its validation, also before a stop
  bool best = false;
  bool synthetic_data = false;
  std::filesystem::path picture;  // empty = none drawn
  std::string sample;             // the text that a language model wrote; empty = none
};

TokenRate token_rate(const StepReport& report);
TokenRate token_rate(const EpochReport& report);

struct DevicePeak {
  std::string device;
  Bytes measured = 0;
  Bytes predicted = 0;
};

struct TrainResult {
  std::filesystem::path run_folder;
  bool finished = false;     // false: stopped between two steps, can be resumed
  std::string resume_flags;  // of a finished run: what --resume needs, such as "--epochs N"
  std::int64_t epochs = 0;   // since the start of the run
  std::int64_t steps = 0;    // since the start of the run
  double seconds = 0;        // of this call
  std::string metric_name;
  std::optional<double> best_metric;       // nothing without validation
  std::int64_t best_epoch = 0;             // from 1; 0 = none yet
  double step_seconds = 0;                 // mean of forward and backward, after warm-up
  double optimizer_seconds = 0;            // mean of the update at the end of a step
  double predicted_seconds = 0;            // of step_seconds
  double predicted_optimizer_seconds = 0;  // of optimizer_seconds
  std::vector<DevicePeak> peaks;           // empty for devices without meters
};

// The run computes in a precision that is much slower than fp32 on this CPU.
struct SlowPrecisionReport {
  std::string precision;    // "fp16"
  std::string weight;       // of the measured layer: "conv1.weight [64, 3, 7, 7]"
  double seconds = 0;       // of its forward and backward
  double fp32_seconds = 0;  // of the same in fp32
  std::string better;       // the precision to use instead: "bf16" or "fp32"
  std::string words;        // all of it as text
};

class Progress {
 public:
  virtual ~Progress() = default;
  virtual void note(const std::string& line) = 0;  // data are synthesized, a run is resumed, ...
  // Comes before everything that computes in this precision.
  virtual void slow_precision(const SlowPrecisionReport& report) { note(report.words); }
  virtual void plan(const RunPlan& plan) = 0;
  virtual void step(const StepReport& report) = 0;
  virtual void epoch(const EpochReport& report) = 0;
  virtual void done(const TrainResult& result) = 0;
  // The run ended with an error. The caller gets it as an exception too.
  virtual void failed(const std::string&) {}
  // A batch of validation.
  virtual void validation_step(const StepReport&) {}
  // Called after each synthetic example.
  virtual void synthesizing_data(std::int64_t, std::int64_t) {}  // done, all
};

enum class ProgressStyle {
  Terminal,  // a bar that moves in place
  Lines,     // one line an epoch, and one every plan.log_every batches, for files and pipes
  Json,      // one object a line: {"event": "epoch", ...}
  Silent,
};
enum class Colours { Off, On };

// `out` must outlive it. Lines are fitted to the terminal's width, which `columns` returns at each
// call; without it, to the width of the terminal of standard output.
std::unique_ptr<Progress> make_progress(ProgressStyle style, Colours colours, std::ostream& out,
                                        std::function<int()> columns = {});

// The style for a file descriptor: Terminal for a terminal, else Lines; colours on a terminal
// unless the environment has NO_COLOR or TERM=dumb.
std::pair<ProgressStyle, Colours> progress_style_of(int descriptor);

}  // namespace trestle::train
