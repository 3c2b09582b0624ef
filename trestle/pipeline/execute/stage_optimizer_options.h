#pragma once

#include <functional>
#include <memory>

#include "trestle/device/named_tensors.h"

namespace torch::optim {
class Optimizer;
}

namespace trestle {

// Makes the optimizer of one stage for these parameters, which have the names of the unsplit model.
using OptimizerFactory = std::function<std::unique_ptr<torch::optim::Optimizer>(
    int stage, const NamedTensors& parameters)>;

// PipelineOptions::optimizer: with it, a step also updates the weights (the actions NORM and STEP).
struct StageOptimizerOptions {
  // Called at the first step() or optimizer(), once for each stage of this process that has
  // parameters. With parallel/parallelize.h the parameters are this rank's shards. It may return
  // null for a stage whose parameters are all frozen. profile() calls it too, with copies of the
  // parameters, to time the update. Empty: step() leaves the gradients to the caller.
  OptimizerFactory make = {};
  // The p-norm of all stages' gradients is clipped to this, as by optim::clip_grad_norm(); 0 = not
  // clipped.
  double clip_grad_norm = 0;
  double clip_p = 2;
};

}  // namespace trestle
