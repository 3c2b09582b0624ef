#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trestle/schedule/lower.h"
#include "trestle/simulate/costs.h"

namespace trestle::plan {

// A plan that ran out of memory, and what may change in it.
struct FitQuestion {
  // The lowered table for that number of micro-batches and these recompute modes.
  std::function<schedule::Schedule(int micro_batches,
                                   const std::vector<schedule::Recompute>& recompute)>
      lower;
  int samples = 1;        // in a mini-batch
  int micro_batches = 1;  // of the plan; the costs are those of its largest one
  // The plan's split_size, or 0. If it is set, suggestions name a split_size.
  int split_size = 0;
  std::vector<int> other_micro_batches = {};        // other numbers to try, in this order
  std::vector<schedule::Recompute> recompute = {};  // the plan's, for each stage
  std::vector<Bytes> budgets = {};                  // of each device; 0 = no limit
};

// One sentence that suggests more micro-batches, or recomputation, or both if neither alone is
// enough. Each suggestion was simulated, and every device with a budget stayed at least 5 % below
// it. The simulation assumes that bytes shrink with the micro-batch, which is not exact. Returns
// general advice if costs or budgets are missing or if nothing fits.
std::string suggest_fit(const FitQuestion& question, const simulate::Costs& costs);

// The same for a forward that no backward follows: it keeps nothing that recomputation would free.
inline constexpr const char* evaluation_advice =
    "Smaller inputs, a smaller batch, or fewer layers in this stage would need less memory.";

}  // namespace trestle::plan
