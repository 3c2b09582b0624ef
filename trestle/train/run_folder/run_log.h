#pragma once

#include <filesystem>
#include <memory>
#include <sstream>
#include <string>

#include "trestle/train/progress/progress.h"

// The log in a run folder: the reports of the run as lines of text.
namespace trestle::train {

// Forwards all reports to a listener and writes them to the log. Reports before open() are kept for
// it. Each line is in the file when the call returns; otherwise the call throws FileError.
class RunLog : public Progress {
 public:
  explicit RunLog(Progress* listener);  // null: only the log
  ~RunLog() override;

  // Creates the file or appends to it, beginning with `first_line`, which the listener does not
  // get.
  void open(std::filesystem::path path, const std::string& first_line);

  // Tells the listener and, if the log is open, writes why the run ended. Never throws.
  void failed(const std::string& message) noexcept override;

  void note(const std::string& line) override;
  void slow_precision(const SlowPrecisionReport& report) override;
  void plan(const RunPlan& plan) override;
  void step(const StepReport& report) override;
  void validation_step(const StepReport& report) override;
  void epoch(const EpochReport& report) override;
  void done(const TrainResult& result) override;
  void synthesizing_data(std::int64_t done, std::int64_t all) override;

 private:
  template <class Action>
  void record(const Action& action);
  void append_lines();

  Progress* listener_;
  std::ostringstream unwritten_;
  std::unique_ptr<Progress> lines_;
  std::filesystem::path path_;  // empty before open()
};

}  // namespace trestle::train
