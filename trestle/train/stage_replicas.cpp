#include "trestle/train/stage_replicas.h"

#include <torch/optim/optimizer.h>

#include "trestle/base/text.h"
#include "trestle/nn/layers.h"
#include "trestle/sharding/norm_over_ranks.h"
#include "trestle/sharding/save.h"
#include "trestle/train/setup.h"

namespace trestle::train {
namespace {

bool is_of_layer(const std::string& name, const std::string& layer) {
  return name.size() > layer.size() && name.starts_with(layer) && name[layer.size()] == '.';
}

// Of all that a rank has, what belongs to the layers [first, last).
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

// None where a stage is frozen as a whole.
torch::optim::Optimizer* optimizer_of(int stage, const std::vector<StageOptimizer>& optimizers) {
  for (const StageOptimizer& one : optimizers)
    if (one.stage == stage) return one.optimizer.get();
  return nullptr;
}

}  // namespace

const sharding::RankGroups& StageReplicas::groups_of(int stage) const {
  const auto own = groups_.find(stage);
  return own == groups_.end() ? ranks_ : own->second;
}

void StageReplicas::take(Pipeline& pipeline, const DeviceMesh& mesh) {
  const bool at_once = pipeline.stage_count() > 1 && mesh.size() == ranks_.all.size();
  const auto parameters = pipeline.named_parameters(), buffers = pipeline.named_buffers();
  const nn::Graph graph = pipeline.model().graph();
  std::size_t first = 0;
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    const auto last =
        first + static_cast<std::size_t>(pipeline.balance()[static_cast<std::size_t>(stage)]);
    if (pipeline.has_stage(stage)) {
      const NamedTensors own = of_layers(graph, first, last, parameters);
      if (at_once) groups_.emplace(stage, sharding::more_rank_groups(mesh, options_));
      stages_.emplace(
          stage, Sharded(own, of_layers(graph, first, last, buffers), groups_of(stage), options_));
      stages_.at(stage).release();
      const auto named = stages_.at(stage).named_parameters();
      const std::map<std::string, at::Tensor> parts(named.begin(), named.end());
      for (const auto& [name, parameter] : own)
        if (const auto part = parts.find(name); part != parts.end())
          stepped_[parameter.unsafeGetTensorImpl()] = part->second;
    }
    first = last;
  }
}

std::vector<optim::GradientNorm> StageReplicas::norm(const std::vector<int>& stages, double p) {
  std::vector<at::Tensor> own;
  for (const int stage : stages)
    for (auto& parameter : stages_.at(stage).parameters()) own.push_back(std::move(parameter));
  if (options_.level == ShardLevel::None) return optim::gradient_norms(own, p);
  const double norm = sharding::norm_over_ranks(own, {groups_of(stages.front()).shard}, p);
  return {{.value = norm, .dtype = at::kDouble}};
}

void StageReplicas::step(int stage, torch::optim::Optimizer& optimizer) {
  optimizer.step();
  stages_.at(stage).shards_changed();
}

at::Tensor StageReplicas::stepped(const at::Tensor& parameter) const {
  return stepped_.at(parameter.unsafeGetTensorImpl());
}

std::vector<at::Tensor> StageReplicas::stepped() const {
  std::vector<at::Tensor> all;
  for (const auto& [stage, sharded] : stages_)
    for (const at::Tensor& parameter : sharded.parameters()) all.push_back(parameter);
  return all;
}

void StageReplicas::zero_grad() {
  for (auto& [stage, sharded] : stages_) sharded.zero_grad();
}

std::string StageReplicas::nonfinite_gradient() const {
  std::string found;
  for (const auto& [stage, sharded] : stages_)
    for (const auto& [name, part] : sharded.named_parameters())
      if (part.grad().defined() && !part.grad().isfinite().all().item<bool>())
        found = text("parameter '", name, "'");
  return found;
}

std::vector<Sharded::Unsharded> StageReplicas::whole() {
  std::vector<Sharded::Unsharded> all;
  for (auto& [stage, sharded] : stages_) all.push_back(sharded.unshard());
  return all;
}

NamedTensors StageReplicas::state() {
  NamedTensors all;
  for (auto& [stage, sharded] : stages_)
    for (auto& one : sharded.state()) all.push_back(std::move(one));
  return all;
}

checkpoint::TensorGroups StageReplicas::groups_to_save(
    const std::vector<StageOptimizer>& optimizers, const SaveOptions& options) const {
  checkpoint::TensorGroups all = {{"weights", {}}, {"optimizer", {}}};
  for (const auto& [stage, sharded] : stages_)
    for (auto& [group, parts] :
         sharding::groups_to_save(sharded, optimizer_of(stage, optimizers), options))
      for (auto& part : parts) all[group].push_back(std::move(part));
  return all;
}

void StageReplicas::load(const checkpoint::SavedTraining& saved,
                         const std::vector<StageOptimizer>& optimizers, checkpoint::SurplusTensors others) {
  for (auto& [stage, sharded] : stages_)
    sharding::load_saved(saved, sharded, optimizer_of(stage, optimizers), others);
}

// In the order in which an evaluation uses the stages.
void StageReplicas::evaluate_nothing() {
  for (auto& [stage, sharded] : stages_) {
    unshard(stage);
    reshard(stage);
  }
}

}  // namespace trestle::train
