#pragma once

#include <vector>

#include "trestle/base/units.h"
#include "trestle/device/clock.h"
#include "trestle/schedule/action.h"
#include "trestle/schedule/schedule.h"
#include "trestle/schedule/timeline.h"

namespace trestle::pipeline {

// What one action did: when, and the memory of its device.
struct ActionRecord {
  schedule::Action action;
  device::Clock::Mark begin, end;
  Bytes peak = 0;   // the most that was held meanwhile
  Bytes after = 0;  // what was held when it had been asked for
};

// One rank's part of the record.
struct RankRecord {
  Bytes before = 0;  // what was held before the first action
  std::vector<ActionRecord> actions = {};
};

// What the ranks of one step did.
struct StepRecord {
  double begin = 0;  // of the step, on the clock of the marks
  std::vector<RankRecord> ranks = {};

  // Waits for devices that are still at it.
  schedule::Timeline timeline(const schedule::Schedule& table) const;
};

}  // namespace trestle::pipeline
