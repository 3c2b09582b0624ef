#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trestle/schedule/lower.h"
#include "trestle/simulate/costs.h"

namespace trestle::plan {

// A plan that ran out of memory, and what may be changed about it.
struct FitQuestion {
  // The table, lowered, that would run with so many micro-batches and these recompute modes.
  std::function<schedule::Schedule(int micro_batches,
                                   const std::vector<schedule::Recompute>& recompute)>
      lower;
  int samples = 1;        // of a mini-batch
  int micro_batches = 1;  // of the plan; the costs are of its largest one
  // Of the plan, where it is cut by size: micro-batches are then suggested by theirs.
  int split_size = 0;
  std::vector<int> other_micro_batches = {};        // numbers to try instead, in this order
  std::vector<schedule::Recompute> recompute = {};  // of the plan, for each stage
  std::vector<Bytes> budgets = {};                  // for each device of the costs; 0 = no limit
};

// One sentence on what would make it fit: more micro-batches, or recomputation, or, if neither alone
// does, both. Each suggestion is a plan that was simulated and in which every device with a budget
// stays 5 % below it: bytes are taken to shrink with the micro-batch, which is not exact. General
// advice where no costs or no budgets are known, or nothing fits.
std::string suggest_fit(const FitQuestion& question, const simulate::Costs& costs);

}  // namespace trestle::plan
