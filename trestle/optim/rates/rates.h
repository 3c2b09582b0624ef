#pragma once

#include <string_view>
#include <vector>

#include "trestle/optim/learning_rate.h"

// The schedules behind the names of learning_rate.h. Each file <name>.cpp of this folder defines
// one entry of the table, `RateSchedule <name>_schedule()`. CMake collects the entries. Not
// installed.
namespace trestle::optim::rates {

struct Position {
  std::int64_t step;  // counted from the end of the warm-up
  double before;      // the rate of the previous step; at step 0 the base rate
  double base;
};

struct RateSchedule {
  std::string_view name;
  // The rate of the step.
  double (*rate)(const LearningRateOptions&, const Position&) = {};
  bool has_length = false;  // then LearningRateOptions::length must be set
  // The momentum of the step; null where the schedule does not change it.
  double (*momentum)(const LearningRateOptions&, std::int64_t step) = nullptr;
};

// Every schedule, sorted by name.
const std::vector<RateSchedule>& all_schedules();

}  // namespace trestle::optim::rates
