#pragma once

#include <string>
#include <vector>

#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/simulate/costs.h"

namespace trestle::plan {

// A plan in which one stage ran out of memory.
struct FitQuestion {
  int stage = 0;
  Bytes budget = 0;  // of the stage's device
  std::string schedule;
  int micro_batches = 1;
  int most_micro_batches = 1;  // the samples of a mini-batch
  schedule::BackwardOrder backward_order = schedule::BackwardOrder::Reverse;
  std::vector<schedule::Recompute> recompute;  // for each stage
  std::vector<schedule::Route> routes;
};

// One sentence on what would make it fit: more micro-batches, or recomputation, tried out in the
// simulator with `costs` (measured with question.micro_batches; bytes are taken to shrink with the
// micro-batch). General advice where no costs are known or nothing fits.
std::string suggest_fit(const FitQuestion& question, const simulate::Costs& costs);

}  // namespace trestle::plan
