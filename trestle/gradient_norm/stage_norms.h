#pragma once

#include <vector>

#include "trestle/comm/group.h"
#include "trestle/optim/gradient_norms.h"

// The norm of gradients of several pipeline stages: each rank holds whole gradients of its stages.
// The norms themselves are gathered and combined in the order of stages, so that the total has the
// bits that one process computes, on whichever ranks the stages are.
namespace trestle::gradient_norm {

struct StageNorm {
  int stage = 0;  // of the gradient, or the first of several stages
  optim::GradientNorm norm;
};

std::vector<optim::GradientNorm> in_stage_order(std::vector<StageNorm> norms);

// The norms of all ranks of the group, which all call it. Waits.
std::vector<StageNorm> gather_stage_norms(const comm::Group& group,
                                          const std::vector<StageNorm>& own);

}  // namespace trestle::gradient_norm
