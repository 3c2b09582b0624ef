#pragma once

#include "trestle/schedule/generate.h"
#include "trestle/schedule/schedule.h"

// The family of 1F1B over ranks in a loop. Not installed.
namespace trestle::schedule {

struct Interleaving {
  int warm_up_per_rank = 1;   // forwards before the first backward, for each rank behind this one
  bool splits = false;        // I and W in place of B
  int late_weight_grads = 0;  // backwards between an I and its W, for each rank before this one
};

// Each rank runs some forwards, then one forward and one backward in turns, then what is left.
// Chunks take turns after rounds of k micro-batches (Narayanan et al. 2021, "Efficient Large-Scale
// Language Model Training on GPU Clusters", section 2.2). The micro-batches are split into max(1,
// m / p) rounds of one size, as in torch.distributed.pipelining. With k = p the order is
// Megatron-LM's. Throws UsageError, with the nearest legal numbers of micro-batches, if rounds of
// one size do not exist.
Schedule interleave(const GenerateOptions& options, const Interleaving& how);

}  // namespace trestle::schedule
