#pragma once

#include <filesystem>
#include <memory>
#include <sstream>
#include <string>

#include "trestle/train/progress.h"

// The log that a run folder keeps: what the run said, as it says it to a file.
namespace trestle::train {

// Hands everything on to whoever listens, and writes it down. What is said before open() is kept for
// it. Each line is in the file when the call returns; where that fails, a call throws FileError.
class RunLog : public Progress {
 public:
  explicit RunLog(Progress* listener);  // null = nobody listens; the log is kept all the same
  ~RunLog() override;

  // Adds to the file, or makes it, and begins with `first_line`, which no listener hears.
  void open(std::filesystem::path path, const std::string& first_line);

  // Writes down why the run ended, if there is a log by now. Never throws.
  void failed(const std::string& message) noexcept;

  void note(const std::string& line) override;
  void plan(const RunPlan& plan) override;
  void step(const StepReport& report) override;
  void validation_step(const StepReport& report) override;
  void epoch(const EpochReport& report) override;
  void done(const TrainResult& result) override;
  void synthesizing_data(std::int64_t done, std::int64_t all) override;

 private:
  template <class Action>
  void say(const Action& action);
  void write_down();

  Progress* listener_;
  std::ostringstream said_;  // and not written down yet
  std::unique_ptr<Progress> lines_;
  std::filesystem::path path_;  // empty before open()
};

}  // namespace trestle::train
