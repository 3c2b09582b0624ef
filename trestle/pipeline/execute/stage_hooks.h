#pragma once

#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/optim/gradient_norms.h"

namespace torch::optim {
class Optimizer;
}

namespace trestle::pipeline {

// The steps of data parallelism: several pipelines share a mini-batch (PipelineOptions::replicas),
// and shard or reduce a stage's parameters and gradients. The pipeline calls it,
// parallel/parallelize.h implements it with trestle/sharding. The rank of the stage calls each
// function, in the order of its row of the table; each may wait for other ranks. If one throws, the
// step fails.
class StageHooks {
 public:
  virtual ~StageHooks() = default;
  // UNSHARD and RESHARD: before the first and after the last use of the stage's parameters in a
  // step or an evaluation.
  virtual void unshard(int stage) = 0;
  virtual void reshard(int stage) = 0;
  // Before the stage's last backward of a step: gradients may be reduced while it runs.
  virtual void before_last_backward(int stage) = 0;
  // REDUCE_GRAD: returns when the stage's gradients are those of the whole mini-batch.
  virtual void reduce_gradients(int stage) = 0;
  // NORM, for all stages of a rank: the p-norms of the gradients of parameters(). For a gradient
  // that is sharded over ranks: the norm of all shards, the same on all of them.
  virtual std::vector<optim::GradientNorm> norm(const std::vector<int>& stages, double p) = 0;
  // STEP: steps the stage's optimizer.
  virtual void step(int stage, torch::optim::Optimizer& optimizer) = 0;

  // The parameters of a stage's optimizer, under the model's names; empty if none is trained.
  virtual NamedTensors parameters(int stage) = 0;
};

}  // namespace trestle::pipeline
