#pragma once

#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/comm/message_log.h"
#include "trestle/device/clock.h"
#include "trestle/schedule/action.h"
#include "trestle/schedule/schedule.h"
#include "trestle/schedule/timeline.h"

namespace trestle::pipeline {

// When one action ran, and the memory of its device.
struct ActionRecord {
  schedule::Action action;
  device::Clock::Mark begin, end;
  Bytes peak = 0;   // the most memory held during the action
  Bytes after = 0;  // held when the host had issued it
  // Messages of tensor ranks, on the clock of the marks.
  std::vector<LoggedMessage> messages = {};
};

// The record of one rank.
struct RankRecord {
  Bytes before = 0;  // held before the first action
  std::vector<ActionRecord> actions = {};
  std::vector<std::string> whole_layers = {};  // whose backward I does not cut, each once
};

// The record of one step.
struct StepRecord {
  double begin = 0;  // of the step, on the clock of the marks
  std::vector<RankRecord> ranks = {};

  // Waits for devices that have not finished yet.
  schedule::Timeline timeline(const schedule::Schedule& table) const;
};

}  // namespace trestle::pipeline
