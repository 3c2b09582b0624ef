#include "trestle/train/run_folder/run_log.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::train {

namespace {

// After a crash the last line may lack its end.
bool ends_inside_line(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in || in.tellg() <= 0) return false;
  in.seekg(-1, std::ios::end);
  return in.get() != '\n';
}

}  // namespace

RunLog::RunLog(Progress* listener)
    : listener_(listener), lines_(make_progress(ProgressStyle::Lines, Colours::Off, unwritten_)) {}

RunLog::~RunLog() = default;

void RunLog::open(std::filesystem::path path, const std::string& first_line) {
  path_ = std::move(path);
  const std::string before = std::exchange(unwritten_, std::ostringstream()).str();
  if (ends_inside_line(path_)) unwritten_ << "\n";
  unwritten_ << first_line << "\n" << before;
  append_lines();
}

void RunLog::failed(const std::string& message) noexcept {
  try {
    if (listener_ != nullptr) listener_->failed(message);
    if (path_.empty()) return;
    lines_->note("failed    " + trim(message));
    append_lines();
  } catch (...) {  // the failure itself is on its way to the caller
  }
}

void RunLog::append_lines() {
  if (path_.empty()) return;
  const std::string words = std::exchange(unwritten_, std::ostringstream()).str();
  if (words.empty()) return;
  std::ofstream out(path_, std::ios::binary | std::ios::app);
  out << words << std::flush;
  if (!out)
    throw FileError(text("cannot be written: ", std::strerror(errno)), {.file = path_.string()});
}

template <class Action>
void RunLog::record(const Action& action) {
  if (listener_ != nullptr) action(*listener_);
  action(*lines_);
  append_lines();
}

void RunLog::slow_precision(const SlowPrecisionReport& report) {
  record([&](Progress& to) { to.slow_precision(report); });
}

void RunLog::note(const std::string& line) {
  record([&](Progress& to) { to.note(line); });
}
void RunLog::plan(const RunPlan& plan) {
  record([&](Progress& to) { to.plan(plan); });
}
void RunLog::step(const StepReport& report) {
  record([&](Progress& to) { to.step(report); });
}
void RunLog::validation_step(const StepReport& report) {
  record([&](Progress& to) { to.validation_step(report); });
}
void RunLog::epoch(const EpochReport& report) {
  record([&](Progress& to) { to.epoch(report); });
}
void RunLog::done(const TrainResult& result) {
  record([&](Progress& to) { to.done(result); });
}
void RunLog::synthesizing_data(std::int64_t done, std::int64_t all) {
  if (listener_ != nullptr) listener_->synthesizing_data(done, all);
}

}  // namespace trestle::train
