#pragma once

#include <cstddef>
#include <vector>

#include "trestle/schedule/schedule.h"
#include "trestle/simulate/costs.h"

namespace trestle::simulate {

// The time that each action of a schedule takes from its rank, without waiting. Keeps references to
// both arguments.
class ActionTimes {
 public:
  // Throws UsageError for an action of a stage or micro-batch that the schedule does not have.
  ActionTimes(const schedule::Schedule& schedule, const Costs& costs);

  double of(const schedule::Action& action) const;
  int norms() const { return norms_; }  // the number of NORMs

 private:
  std::size_t cell(int stage, int micro_batch) const;
  void check_range(const schedule::Action& action) const;
  double own(const schedule::Action& action, const StageCost& cost) const;
  // The sum over all stages of the stage's rank.
  double norm(int stage) const;

  const schedule::Schedule& schedule_;
  const Costs& costs_;
  std::vector<bool> recomputed_;
  int norms_ = 0;
};

}  // namespace trestle::simulate
