#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trestle/checkpoint/rank_slices.h"
#include "trestle/device/named_tensors.h"
#include "trestle/mesh/device_mesh.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/sharding/options/options.h"
#include "trestle/tensor_parallel/tensor_ranks.h"

namespace trestle {

namespace nn {
class Layers;
}
class ShardedParameters;

// Level Parameters: the parameters of a stage that are gathered and released together.
enum class StageUnits {
  // Each layer, or the units of `units`: around each layer of each micro-batch. Least memory. A
  // step gathers every unit once for each forward, recomputation and backward of a micro-batch.
  Layers,
  // All parameters of the stage: once a step, from its first forward to its last backward.
  Stage,
};

// The names of the mesh's dimensions. A mesh need not have all of them.
struct ParallelOptions {
  std::string pipeline = "pipeline";    // stages, one after the other
  std::string replicate = "replicate";  // pipelines that share each batch
  std::string shard = "shard";          // the same, with their state sharded at `level`
  std::string tensor = "tensor";        // ranks that split the layers of one pipeline
  // With a dimension `tensor`: the ranks that the model's layers were made for.
  tensor_parallel::TensorRanks tensor_ranks = {};
  // Whether tensor ranks compare each call and the bytes of its batch. With different batches they
  // compute wrong numbers without an error. It costs a hash of the batch and two small messages.
  // Off is for programs that have compared their batches already.
  comm::Check compare_batches = comm::Check::On;
  ShardLevel level = ShardLevel::None;
  StageUnits stage_units = StageUnits::Layers;
  // The same fields as in ShardOptions.
  ShardUnits units = {};  // with StageUnits::Layers
  Reshard reshard_after_forward = true;
  ShardBuckets buckets = {};
  bool shards_on_cpu = false;
  // The mesh sets `group` and `replicas`. With `optimizer` step() clips by the norm of all stages
  // and shards, and each rank steps its own shards.
  PipelineOptions options = {};
};

// A model on the ranks of a mesh: a pipeline along one dimension, replicated along the other ones.
// Each replica takes its share of the batch. Loss and gradients equal those of the plain model on
// the whole batch.
//
//   trestle::DeviceMesh mesh(world, {{"pipeline", 2}, {"replicate", 2}});
//   auto parallel =
//       trestle::parallelize(net, mesh, {.options = {.balance = {2, 2}, .micro_batches = 4}});
//   auto optimizer = trestle::optim::make_optimizer(parallel.parameters(), {.name = "adamw"});
//   // This replica's share of the batch:
//   auto result = parallel.step(image, mask, trestle::nn::cross_entropy());
//   parallel.clip_grad_norm(1.0);
//   optimizer->step();
//
// With tensor parallelism the model's layers are made for the ranks of the dimension "tensor", and
// each of them takes the same share of the batch:
//
//   trestle::DeviceMesh mesh(world, {{"replicate", 2}, {"tensor", 2}});
//   const trestle::tensor_parallel::TensorRanks ranks(mesh);
//   auto net = trestle::models::transformer(config, {.tensor = {.ranks = ranks}});
//   auto parallel = trestle::parallelize(net, mesh, {.tensor_ranks = ranks});
//
// parameters() are then slices of the model's. The tensor ranks compare their parameters, options
// and tables when they make it, and the batches of each call. They throw UsageError with the first
// difference.
//
// At the levels above None parameters() are this rank's shards, as those of a Sharded. At level
// Parameters a step gathers a stage's parameters layer by layer and frees them, in each forward and
// backward of a micro-batch (ParallelOptions::stage_units). All replicas then split their shares
// of a batch into equal numbers of micro-batches: the least number that a replica has.
class Parallel {
 public:
  Parallel(const nn::Layers& model, const DeviceMesh& mesh, ParallelOptions options = {});
  Parallel(Parallel&&) noexcept;
  Parallel& operator=(Parallel&&) noexcept;
  ~Parallel();

  // As Pipeline::step(), with this replica's share of the batch. The shares may have different
  // sizes if the loss is a mean over samples.
  StepResult step(const at::Tensor& input, const at::Tensor& target, const nn::Loss& loss,
                  StepOptions options = {});
  at::Tensor evaluate(const at::Tensor& input);  // evaluates this replica's input

  // This rank's parameters or shards, for an optimizer; stage_parameters(): those of one stage.
  std::vector<at::Tensor> parameters() const;
  NamedTensors named_parameters() const;
  NamedTensors stage_parameters(int stage) const;
  void zero_grad();
  double clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& options = {});

  Pipeline& pipeline();
  const Pipeline& pipeline() const;
  // The stage's engine; null where nothing is replicated or sharded. The stage must be on this
  // rank.
  ShardedParameters* sharded(int stage) const;
  int replicas() const;  // pipelines that share each batch
  int replica() const;   // the number of this one
  // The places of this rank's slices in the unsplit model, for checkpoints (rank_slices.h).
  checkpoint::RankSlices rank_slices() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

inline Parallel parallelize(const nn::Layers& model, const DeviceMesh& mesh,
                            ParallelOptions options = {}) {
  return {model, mesh, std::move(options)};
}

}  // namespace trestle
