#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/mesh/device_mesh.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/sharding/options.h"

namespace trestle {

namespace nn {
class Layers;
}
class ShardedParameters;

// Which dimensions of a mesh do what. A mesh need not have them all.
struct ParallelOptions {
  std::string pipeline = "pipeline";    // stages, one after the other
  std::string replicate = "replicate";  // pipelines that take parts of a batch
  std::string shard = "shard";          // the same, and divide their stages' state as `level` says
  ShardLevel level = ShardLevel::None;
  // Without group, replicas and hooks, which the mesh gives. With `optimizer` step() clips by the norm of all stages and
  // shards and steps, each rank its own parts.
  PipelineOptions options = {};
};

// A model that is laid over the ranks of a mesh: pipelines whose stages are on the ranks along one dimension, repeated along
// the others, each with its part of the batch. Loss and gradients equal those of the plain model on all parts together.
//
//   trestle::DeviceMesh mesh(world, {{"pipeline", 2}, {"replicate", 2}});
//   auto parallel = trestle::parallelize(net, mesh, {.options = {.balance = {2, 2}, .micro_batches = 4}});
//   auto optimizer = trestle::optim::make_optimizer(parallel.parameters(), {.name = "adamw"});
//   auto result = parallel.step(image, mask, trestle::nn::cross_entropy());   // this replica's part
//   parallel.clip_grad_norm(1.0);
//   optimizer->step();
//
// At the levels above None parameters() are this rank's parts of its stages' parameters, as of a Sharded. A step gathers a
// stage's parameters before their first use and lets them go after its last backward.
class Parallel {
 public:
  Parallel(const nn::Layers& model, const DeviceMesh& mesh, ParallelOptions options = {});
  Parallel(Parallel&&) noexcept;
  Parallel& operator=(Parallel&&) noexcept;
  ~Parallel();

  // As Pipeline's. Each replica gives its own part; where its loss is a mean over samples, parts may have different sizes.
  StepResult step(const at::Tensor& input, const at::Tensor& target, const nn::Loss& loss,
                  StepOptions options = {});
  at::Tensor evaluate(const at::Tensor& input);  // of this replica's input alone

  // What this rank's optimizer steps, and the same for one of its stages.
  std::vector<at::Tensor> parameters() const;
  NamedTensors named_parameters() const;
  NamedTensors stage_parameters(int stage) const;
  void zero_grad();
  double clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& options = {});

  Pipeline& pipeline();
  const Pipeline& pipeline() const;
  // Of a stage that is here; null where nothing is replicated or divided.
  ShardedParameters* sharded(int stage) const;
  int replicas() const;  // that take parts of a batch
  int replica() const;   // the number of this one

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

inline Parallel parallelize(const nn::Layers& model, const DeviceMesh& mesh,
                            ParallelOptions options = {}) {
  return {model, mesh, std::move(options)};
}

}  // namespace trestle
