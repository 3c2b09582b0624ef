#pragma once

#include <map>

#include "trestle/device/named_tensors.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/pipeline/stage_hooks.h"
#include "trestle/sharding/sharded.h"

// The seam between a pipeline and the sharding engine, which do not know each other. Not installed.
namespace trestle::train {

// The stages of one of several pipelines that take parts of a batch.
class StageReplicas final : public pipeline::StageHooks {
 public:
  StageReplicas(sharding::RankGroups ranks, const ShardOptions& options)
      : ranks_(std::move(ranks)), options_(options) {}

  // The parameters of the pipeline's stages that are here, as they are trained and frozen now. Called once, before its
  // first step, by all ranks.
  void take(Pipeline& pipeline);

  const sharding::RankGroups& ranks() const { return ranks_; }
  Sharded& stage(int stage) { return stages_.at(stage); }

  void unshard(int stage) override { stages_.at(stage).gather(); }
  void reshard(int stage) override { stages_.at(stage).release(); }
  void before_last_backward(int stage) override { stages_.at(stage).reduce_next_backward(); }
  void reduce_gradients(int stage) override { stages_.at(stage).finish_reduction(); }
  // One small reduction, where parameters are divided.
  std::vector<optim::GradientNorm> norm(const std::vector<int>& stages, double p) override;
  void step(int stage, torch::optim::Optimizer& optimizer) override;
  NamedTensors parameters(int stage) override { return stages_.at(stage).named_parameters(); }

 private:
  sharding::RankGroups ranks_;
  ShardOptions options_;
  std::map<int, Sharded> stages_;
};

}  // namespace trestle::train
