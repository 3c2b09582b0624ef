#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "trestle/train/progress/progress.h"
#include "trestle/train/progress/time_left.h"
#include "trestle/train/run_folder/metrics.h"
#include "trestle/train/run_folder/run_folder.h"
#include "trestle/train/run_folder/tensorboard.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Writes what happens in a run to the run's metrics file and TensorBoard's, and reports it to a
// Progress with the estimated time left. Files are written by one rank; the other ranks call open()
// on none of theirs.
class RunReporter {
 public:
  // Which files to write: those of a new run, or of one that is resumed after `step` steps and
  // `epoch` epochs.
  struct Position {
    std::int64_t step = 0, epoch = 0;
  };
  enum class Files { New, Resumed };
  enum class Tensorboard { Off, On };

  // `progress` must outlive it.
  explicit RunReporter(Progress& progress) : progress_(progress) {}

  void open(const RunFolder& folder, Files files, const Position& at, Tensorboard tensorboard);

  // A batch of training; `run` and `epoch` are what is left of them after it.
  void batch(StepReport report, const TimeLeft::Work& epoch, const TimeLeft::Work& run);
  void validation_batch(StepReport report, const TimeLeft::Work& validation,
                        const TimeLeft::Work& run);
  void step(const StepMetrics& metrics);
  // The epoch's files; what the person sees follows with progress().epoch().
  void epoch(const EpochReport& report);

  Progress& progress() { return progress_; }
  TimeLeft& times() { return times_; }

 private:
  Progress& progress_;
  std::unique_ptr<MetricsFile> metrics_;
  std::optional<EventFile> events_;
  TimeLeft times_;
};

}  // namespace trestle::train
