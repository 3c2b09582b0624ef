#pragma once

#include "trestle/comm/group.h"
#include "trestle/optim/clip_grad_norm.h"
#include "trestle/pipeline/execute/stage_list.h"

// The norm of all stages' gradients, for a caller that steps its own optimizer. All ranks of the
// group call these. All scale by the same norm and throw the same error.
namespace trestle::pipeline {

// As optim::clip_grad_norm(), over the stages of all ranks.
double clip_grad_norm(const comm::Group& group, const StageList& stages, double max_norm,
                      const optim::ClipGradNormOptions& options);

// As optim::grad_norm().
double grad_norm(const comm::Group& group, const StageList& stages, double p);

}  // namespace trestle::pipeline
