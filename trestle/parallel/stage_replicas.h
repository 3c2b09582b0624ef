#pragma once

#include <map>
#include <string>
#include <vector>

#include "trestle/checkpoint/save.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/device/named_tensors.h"
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
  StageReplicas(sharding::RankGroups ranks, const ShardOptions& options)
      : ranks_(std::move(ranks)), options_(options) {}

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

  void unshard(int stage) override { stages_.at(stage).unshard(); }
  void reshard(int stage) override { stages_.at(stage).reshard(); }
  void before_last_backward(int stage) override { stages_.at(stage).reduce_next_backward(); }
  void reduce_gradients(int stage) override { stages_.at(stage).finish_reduction(); }
  // With sharded parameters this takes one small reduction.
  std::vector<optim::GradientNorm> norm(const std::vector<int>& stages, double p) override;
  void step(int stage, torch::optim::Optimizer& optimizer) override;
  NamedTensors parameters(int stage) override { return stages_.at(stage).named_parameters(); }

 private:
  // A process with several stages runs each in a thread of its own. Each stage then needs groups of
  // its own, since the collectives of two threads have no common order.
  const sharding::RankGroups& groups_of(int stage) const;

  sharding::RankGroups ranks_;
  ShardOptions options_;
  std::map<int, sharding::RankGroups> groups_;  // of stages whose groups are not ranks_
  std::map<int, ShardedParameters> stages_;
};

}  // namespace trestle::parallel
