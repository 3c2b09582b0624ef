#pragma once

#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/optim/gradient_norms.h"

namespace torch::optim {
class Optimizer;
}

namespace trestle::nn {
struct Graph;
}

namespace trestle::pipeline {

// The micro-batches between UNSHARD and RESHARD.
struct StageUse {
  enum class Kind { Step, Evaluation };
  Kind kind = Kind::Step;
  int micro_batches = 1;  // of this rank
};

// The steps of data parallelism: several pipelines share a mini-batch (PipelineOptions::replicas),
// and shard or reduce a stage's parameters and gradients. The pipeline calls it,
// parallel/parallelize.h implements it with trestle/sharding. The rank of the stage calls each
// function, in the order of its row of the table; each may wait for other ranks. If one throws, the
// step fails.
class StageHooks {
 public:
  virtual ~StageHooks() = default;
  // Once, before the pipeline cuts the model: may wrap the layers' forwards.
  virtual void wrap_layers(nn::Graph& graph) = 0;
  // Whether all replicas must split their shares of a step into equal numbers of micro-batches.
  virtual bool needs_equal_micro_batches() const = 0;
  // Whether W can run after I. If not, as where each layer's parameters are gathered for its
  // backward alone, I is the whole backward.
  virtual bool can_split_backward() const = 0;
  // UNSHARD and RESHARD: before the first and after the last use of the stage's parameters in a
  // step or an evaluation.
  virtual void unshard(int stage, const StageUse& use) = 0;
  virtual void reshard(int stage) = 0;
  // After UNSHARD: the value of a parameter of the stage that other stages use too, for its copies
  // there.
  virtual at::Tensor value_for_copies(int stage, const at::Tensor& parameter) = 0;
  // A step or an evaluation failed: forgets what it has begun, in place of RESHARD.
  virtual void abandon(int stage) = 0;
  // After the stage's last forward of an evaluation: takes part in forwards that only other
  // replicas run. Other stages of this process may still run forwards, in other threads or later in
  // this one.
  virtual void end_forwards(int stage) = 0;
  // Before the stage's last backward of a step: gradients may be reduced while it runs.
  virtual void before_last_backward(int stage) = 0;
  // After each backward of the stage.
  virtual void after_backward(int stage) = 0;
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
