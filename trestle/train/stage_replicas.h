#pragma once

#include <map>
#include <string>
#include <vector>

#include "trestle/checkpoint/save.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/device/named_tensors.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/pipeline/stage_hooks.h"
#include "trestle/sharding/sharded.h"

// The seam between a pipeline and the sharding engine, which do not know each other. Not installed.
namespace trestle::train {

struct StageOptimizer;

// The stages of one of several pipelines that take parts of a batch. What is not const, and save() and load(), all ranks
// call.
class StageReplicas final : public pipeline::StageHooks {
 public:
  StageReplicas(sharding::RankGroups ranks, const ShardOptions& options)
      : ranks_(std::move(ranks)), options_(options) {}

  // The parameters of the pipeline's stages that are here, as they are trained and frozen now. Called once, before its
  // first step, by all ranks of the mesh's world.
  void take(Pipeline& pipeline, const DeviceMesh& mesh);

  const sharding::RankGroups& ranks() const { return ranks_; }
  Sharded& stage(int stage) { return stages_.at(stage); }
  // Whether anything of the stages is on some of the ranks only.
  bool divides() const { return options_.level != ShardLevel::None; }

  // What an optimizer steps instead of a stage's parameter that is trained: this rank's part, or itself.
  at::Tensor stepped(const at::Tensor& parameter) const;
  std::vector<at::Tensor> stepped() const;  // of all stages that are here
  void zero_grad();
  // "parameter 'out.weight'": the last one of this rank whose part has a gradient that is infinite or NaN; "" without.
  std::string nonfinite_gradient() const;

  // While they live the pipeline's parameters are whole on all ranks, outside of its steps.
  std::vector<Sharded::Unsharded> whole();
  // Whole weights and buffers on the CPU, of the stages that are here.
  NamedTensors state();
  // What this rank writes of a checkpoint, and reads from it.
  checkpoint::TensorGroups groups_to_save(const std::vector<StageOptimizer>& optimizers,
                                          const SaveOptions& options) const;
  void load(const checkpoint::SavedTraining& saved, const std::vector<StageOptimizer>& optimizers,
            checkpoint::SurplusTensors others);

  // Instead of an evaluation, on a rank that has no examples while others have some.
  void evaluate_nothing();

  void unshard(int stage) override { stages_.at(stage).gather(); }
  void reshard(int stage) override { stages_.at(stage).release(); }
  void before_last_backward(int stage) override { stages_.at(stage).reduce_next_backward(); }
  void reduce_gradients(int stage) override { stages_.at(stage).finish_reduction(); }
  // One small reduction, where parameters are divided.
  std::vector<optim::GradientNorm> norm(const std::vector<int>& stages, double p) override;
  void step(int stage, torch::optim::Optimizer& optimizer) override;
  NamedTensors parameters(int stage) override { return stages_.at(stage).named_parameters(); }

 private:
  // A process that has all stages runs them at once, each in a thread: then each has groups of its own.
  const sharding::RankGroups& groups_of(int stage) const;

  sharding::RankGroups ranks_;
  ShardOptions options_;
  std::map<int, sharding::RankGroups> groups_;  // of a stage, where they are not ranks_
  std::map<int, Sharded> stages_;
  std::map<const void*, at::Tensor> stepped_;  // by the parameter
};

}  // namespace trestle::train
