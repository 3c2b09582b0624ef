#pragma once

#include "trestle/comm/group.h"
#include "trestle/device/named_tensors.h"
#include "trestle/gradient_norm/slice_norm.h"
#include "trestle/optim/clip_grad_norm.h"
#include "trestle/pipeline/execute/stage_list.h"

// The norm of all stages' gradients, for a caller that steps its own optimizer. All ranks of the
// group call these. All scale by the same norm and throw the same error.
namespace trestle::pipeline {

// The parameters of this rank's stages.
struct StageGradients {
  const StageList& stages;
  const NamedTensors& named;
  gradient_norm::SlicedParameters sliced;
};

// As optim::clip_grad_norm(), over the stages of all ranks.
double clip_grad_norm(const comm::Group& group, const StageGradients& gradients, double max_norm,
                      const optim::ClipGradNormOptions& options);

// As optim::grad_norm().
double grad_norm(const comm::Group& group, const StageGradients& gradients, double p);

}  // namespace trestle::pipeline
