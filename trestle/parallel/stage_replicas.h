#pragma once

#include <map>
#include <string>
#include <vector>

#include "trestle/checkpoint/save.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/device/named_tensors.h"
#include "trestle/gradient_norm/slice_norm.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/pipeline/execute/stage_hooks.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/sharding/options/rank_groups.h"
#include "trestle/sharding/sharded_parameters.h"

// Joins a pipeline with the sharding engine, which do not include each other. Not installed.
namespace trestle::parallel {

// The optimizer of each stage of this process that has one.
using StageOptimizers = std::map<int, torch::optim::Optimizer*>;

// The stages of one of several pipelines that share each batch. All ranks call the functions that
// are not const, and save() and load().
class StageReplicas final : public pipeline::StageHooks {
 public:
  StageReplicas(sharding::RankGroups ranks, const ShardOptions& options, StageUnits units)
      : ranks_(std::move(ranks)), options_(options), units_(units) {}
  // A pipeline's layers outlive it; they no longer find their stage.
  ~StageReplicas() override { stage_of_layer_->clear(); }
  StageReplicas(const StageReplicas&) = delete;
  StageReplicas& operator=(const StageReplicas&) = delete;

  // Before take_parameters().
  void set_buckets(const ShardBuckets& buckets) { options_.buckets = buckets; }
  // The parameters of which tensor ranks hold slices, for norms. Before the first step.
  void set_sliced(gradient_norm::SlicedParameters sliced) { sliced_ = std::move(sliced); }
  // Replicates or shards the parameters of the stages of this process, as they are trained and
  // frozen now. Called once, before the pipeline's first step, by all ranks of the mesh's world.
  void take_parameters(Pipeline& pipeline, const DeviceMesh& mesh);

  const sharding::RankGroups& ranks() const { return ranks_; }
  ShardedParameters& stage(int stage) { return stages_.at(stage); }
  bool is_sharded() const { return options_.level != ShardLevel::None; }

  void zero_grad();
  // "parameter 'out.weight'": the last one of this rank whose gradient, or shard of it, is infinite
  // or NaN; "" where all are finite.
  std::string nonfinite_gradient() const;

  // Unshards all parameters on all ranks as long as the returned objects live.
  std::vector<ShardedParameters::Unsharded> whole();
  // Unsharded weights and buffers on the CPU, of the stages of this process.
  NamedTensors state();
  // The tensors that this rank writes into a checkpoint, and reads from it.
  checkpoint::TensorGroups groups_to_save(const StageOptimizers& optimizers,
                                          const SaveOptions& options) const;
  void load(const checkpoint::SavedTraining& saved, const StageOptimizers& optimizers,
            checkpoint::SurplusTensors others);

  // Takes part in an evaluation that this rank has no examples of.
  void evaluate_nothing();

  void wrap_layers(nn::Graph& graph) override;
  bool needs_equal_micro_batches() const override { return gathers_layers(); }
  bool can_split_backward() const override { return !gathers_layers(); }
  void unshard(int stage, const pipeline::StageUse& use) override;
  at::Tensor value_for_copies(int stage, const at::Tensor& parameter) override;
  void reshard(int stage) override;
  void abandon(int stage) override;
  void end_forwards(int stage) override;
  void before_last_backward(int stage) override { stages_.at(stage).reduce_next_backward(); }
  void after_backward(int stage) override { stages_.at(stage).end_backward(); }
  void reduce_gradients(int stage) override { stages_.at(stage).finish_reduction(); }
  // With sharded parameters this takes one small reduction.
  std::vector<optim::GradientNorm> norm(const std::vector<int>& stages, double p) override;
  void step(int stage, torch::optim::Optimizer& optimizer) override;
  NamedTensors parameters(int stage) override { return stages_.at(stage).named_parameters(); }

 private:
  // A process with several stages may run each in a thread of its own. Each stage then needs groups
  // of its own, since the collectives of two threads have no common order.
  const sharding::RankGroups& groups_of(int stage) const;
  void connect_layers(const Pipeline& pipeline);
  void find_copied_parameters(const Pipeline& pipeline, const nn::Graph& graph);
  bool gathers_layers() const {
    return options_.level == ShardLevel::Parameters && units_ == StageUnits::Layers;
  }

  sharding::RankGroups ranks_;
  ShardOptions options_;
  StageUnits units_;
  gradient_norm::SlicedParameters sliced_;
  // [layer] its stage; empty before take_parameters(). The wrapped layers hold it too.
  std::shared_ptr<std::vector<ShardedParameters*>> stage_of_layer_ =
      std::make_shared<std::vector<ShardedParameters*>>();
  std::map<int, int> missing_forwards_;         // of a stage's evaluation, which other ranks run
  std::map<int, sharding::RankGroups> groups_;  // of stages whose groups are not ranks_
  std::map<int, ShardedParameters> stages_;
  // Parameters of which other stages have copies, with their values between UNSHARD and the
  // sending of the copies.
  struct Copied {
    at::Tensor parameter, value;
  };
  std::map<int, std::vector<Copied>> copied_;  // [stage]
};

}  // namespace trestle::parallel
