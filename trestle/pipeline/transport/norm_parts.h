#pragma once

#include <vector>

#include "trestle/comm/group.h"
#include "trestle/optim/gradient_norms.h"

// The norm of all gradients of a step, of which each rank has a part.
namespace trestle::pipeline {

struct NormPart {
  int stage = 0;  // whose gradient it is, or the first of several stages'
  optim::GradientNorm norm;
};

// Those of several ranks in the order of stages, so that the total has the bits that one process
// gives it, however the stages are laid over ranks.
std::vector<optim::GradientNorm> in_order(std::vector<NormPart> parts);

// Those of all ranks of the group, which all call it. Waits.
std::vector<NormPart> gather_norm_parts(const comm::Group& group, const std::vector<NormPart>& own);

}  // namespace trestle::pipeline
