#pragma once

#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/optim/gradient_norms.h"

namespace torch::optim {
class Optimizer;
}

namespace trestle::pipeline {

// What happens to a stage's parameters besides a pipeline's own work, where several pipelines take parts of one mini-batch
// (PipelineOptions::replicas): the pipeline calls it, train/parallelize.h implements it with trestle/sharding. Called by the
// rank that has the stage, in the order of its table's row; each may wait for other ranks. What they throw is the step's
// failure.
class StageHooks {
 public:
  virtual ~StageHooks() = default;
  // UNSHARD and RESHARD: around all uses of the stage's parameters in a step or an evaluation.
  virtual void unshard(int stage) = 0;
  virtual void reshard(int stage) = 0;
  // Before the stage's last backward of a step: gradients may be reduced as they come.
  virtual void before_last_backward(int stage) = 0;
  // REDUCE_GRAD: returns when the stage's gradients are the whole mini-batch's.
  virtual void reduce_gradients(int stage) = 0;
  // NORM, of all of a rank's stages: the p-norms of the gradients that parameters() have, and where several ranks have parts
  // of one, of all parts together: the same on all of them.
  virtual std::vector<optim::GradientNorm> norm(const std::vector<int>& stages, double p) = 0;
  // STEP: the stage's optimizer changes its parameters().
  virtual void step(int stage, torch::optim::Optimizer& optimizer) = 0;

  // What a stage's optimizer is made of, under the model's names; empty where there is nothing to train.
  virtual NamedTensors parameters(int stage) = 0;
};

}  // namespace trestle::pipeline
