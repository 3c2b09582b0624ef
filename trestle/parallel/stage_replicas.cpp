#include "trestle/parallel/stage_replicas.h"

#include <torch/optim/optimizer.h>

#include "trestle/base/text.h"
#include "trestle/gradient_norm/sharded_norm.h"
#include "trestle/nn/layers.h"
#include "trestle/sharding/save/save.h"

namespace trestle::parallel {
namespace {

bool is_of_layer(const std::string& name, const std::string& layer) {
  return name.size() > layer.size() && name.starts_with(layer) && name[layer.size()] == '.';
}

// The tensors of the layers [first, last) among those of a rank.
NamedTensors of_layers(const nn::Graph& graph, std::size_t first, std::size_t last,
                       const NamedTensors& named) {
  NamedTensors own;
  for (const auto& one : named)
    for (std::size_t layer = first; layer < last; ++layer)
      if (is_of_layer(one.first, graph.layers[layer].name)) {
        own.push_back(one);
        break;
      }
  return own;
}

// Null where a stage is frozen as a whole.
torch::optim::Optimizer* optimizer_of(int stage, const StageOptimizers& optimizers) {
  const auto found = optimizers.find(stage);
  return found == optimizers.end() ? nullptr : found->second;
}

}  // namespace

const sharding::RankGroups& StageReplicas::groups_of(int stage) const {
  const auto own = groups_.find(stage);
  return own == groups_.end() ? ranks_ : own->second;
}

void StageReplicas::take_parameters(Pipeline& pipeline, const DeviceMesh& mesh) {
  const bool in_threads = pipeline.stage_count() > 1 && mesh.size() == ranks_.all.size();
  const auto parameters = pipeline.named_parameters(), buffers = pipeline.named_buffers();
  const nn::Graph graph = pipeline.model().graph();
  std::size_t first = 0;
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    const auto last =
        first + static_cast<std::size_t>(pipeline.balance()[static_cast<std::size_t>(stage)]);
    if (pipeline.has_stage(stage)) {
      const NamedTensors own = of_layers(graph, first, last, parameters);
      if (in_threads) groups_.emplace(stage, sharding::separate_rank_groups(mesh, options_));
      stages_.emplace(stage, ShardedParameters(own, of_layers(graph, first, last, buffers),
                                               groups_of(stage), options_));
      stages_.at(stage).reshard();
    }
    first = last;
  }
}

std::vector<optim::GradientNorm> StageReplicas::norm(const std::vector<int>& stages, double p) {
  std::vector<at::Tensor> own;
  for (const int stage : stages)
    for (auto& parameter : stages_.at(stage).parameters()) own.push_back(std::move(parameter));
  if (options_.level == ShardLevel::None) return optim::gradient_norms(own, p);
  const double norm = gradient_norm::norm_over_ranks(own, {groups_of(stages.front()).shard}, p);
  return {{.value = norm, .dtype = at::kDouble}};
}

void StageReplicas::step(int stage, torch::optim::Optimizer& optimizer) {
  optimizer.step();
  stages_.at(stage).shards_changed();
}

void StageReplicas::zero_grad() {
  for (auto& [stage, sharded] : stages_) sharded.zero_grad();
}

std::string StageReplicas::nonfinite_gradient() const {
  std::string found;
  for (const auto& [stage, sharded] : stages_)
    for (const auto& [name, shard] : sharded.named_parameters())
      if (shard.grad().defined() && !shard.grad().isfinite().all().item<bool>())
        found = text("parameter '", name, "'");
  return found;
}

std::vector<ShardedParameters::Unsharded> StageReplicas::whole() {
  std::vector<ShardedParameters::Unsharded> all;
  for (auto& [stage, sharded] : stages_) all.push_back(sharded.unsharded());
  return all;
}

NamedTensors StageReplicas::state() {
  NamedTensors all;
  for (auto& [stage, sharded] : stages_)
    for (auto& one : sharded.state()) all.push_back(std::move(one));
  return all;
}

checkpoint::TensorGroups StageReplicas::groups_to_save(const StageOptimizers& optimizers,
                                                       const SaveOptions& options) const {
  checkpoint::TensorGroups all = {{"weights", {}}, {"optimizer", {}}};
  for (const auto& [stage, sharded] : stages_)
    for (auto& [group, parts] :
         sharding::groups_to_save(sharded, optimizer_of(stage, optimizers), options))
      for (auto& part : parts) all[group].push_back(std::move(part));
  return all;
}

void StageReplicas::load(const checkpoint::SavedTraining& saved, const StageOptimizers& optimizers,
                         checkpoint::SurplusTensors others) {
  for (auto& [stage, sharded] : stages_)
    sharding::load_saved(saved, sharded, optimizer_of(stage, optimizers), others);
}

// The collectives follow the order of an evaluation.
void StageReplicas::evaluate_nothing() {
  for (auto& [stage, sharded] : stages_) {
    unshard(stage);
    reshard(stage);
  }
}

}  // namespace trestle::parallel
