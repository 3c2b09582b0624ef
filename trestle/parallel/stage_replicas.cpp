#include "trestle/parallel/stage_replicas.h"

#include <ATen/Functions.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/purpose.h"
#include "trestle/gradient_norm/sharded_norm.h"
#include "trestle/nn/layers.h"
#include "trestle/sharding/save/save.h"

namespace trestle::parallel {
namespace {

bool is_of_layer(const std::string& name, const std::string& layer) {
  return name.size() > layer.size() && name.starts_with(layer) && name[layer.size()] == '.';
}

// The layer with the longest name that begins a tensor's name: beside a layer "a" there may be the
// layers of a nested model "a", such as "a.b".
std::size_t layer_of(const nn::Graph& graph, const std::string& name) {
  std::size_t found = graph.layers.size(), length = 0;
  for (std::size_t layer = 0; layer < graph.layers.size(); ++layer) {
    const std::string& own = graph.layers[layer].name;
    if (own.size() < length || !is_of_layer(name, own)) continue;
    found = layer;
    length = own.size();
  }
  return found;
}

// The tensors of the layers [first, last) among those of a rank.
NamedTensors of_layers(const nn::Graph& graph, std::size_t first, std::size_t last,
                       const NamedTensors& named) {
  NamedTensors own;
  for (const auto& one : named)
    if (const std::size_t layer = layer_of(graph, one.first); layer >= first && layer < last)
      own.push_back(one);
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
      const NamedTensors own_buffers = of_layers(graph, first, last, buffers);
      if (units_ == StageUnits::Layers) {
        stages_.emplace(stage,
                        ShardedParameters(own, own_buffers, graph, static_cast<int>(first),
                                          static_cast<int>(last), groups_of(stage), options_));
      } else {
        stages_.emplace(stage, ShardedParameters(own, own_buffers, groups_of(stage), options_));
      }
      stages_.at(stage).reshard();
      missing_forwards_[stage] = 0;
    }
    first = last;
  }
  find_copied_parameters(pipeline, graph);
  if (gathers_layers()) connect_layers(pipeline);
}

void StageReplicas::find_copied_parameters(const Pipeline& pipeline, const nn::Graph& graph) {
  std::vector<int> stage_of_layer;
  for (std::size_t stage = 0; stage < pipeline.balance().size(); ++stage)
    stage_of_layer.insert(stage_of_layer.end(), static_cast<std::size_t>(pipeline.balance()[stage]),
                          static_cast<int>(stage));
  for (const auto& tie : graph.ties) {
    const auto [layer, name] = nn::owner_of(graph, tie);
    const int stage = stage_of_layer[static_cast<std::size_t>(layer)];
    if (stage == stage_of_layer[static_cast<std::size_t>(tie.layer)] || !pipeline.has_stage(stage))
      continue;
    auto& own = copied_[stage];
    for (const auto& [own_name, tensor] :
         graph.layers[static_cast<std::size_t>(layer)].named_parameters()) {
      const bool is_new = std::none_of(
          own.begin(), own.end(), [&](const Copied& one) { return one.parameter.is_same(tensor); });
      if (own_name == name && is_new) own.push_back({.parameter = tensor, .value = {}});
    }
  }
}

// From now on the wrapped layers find the stage that gathers their parameters.
void StageReplicas::connect_layers(const Pipeline& pipeline) {
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    const int layers = pipeline.balance()[static_cast<std::size_t>(stage)];
    ShardedParameters* const own = pipeline.has_stage(stage) ? &stages_.at(stage) : nullptr;
    stage_of_layer_->insert(stage_of_layer_->end(), static_cast<std::size_t>(layers), own);
  }
}

void StageReplicas::wrap_layers(nn::Graph& graph) {
  if (!gathers_layers()) return;
  for (std::size_t layer = 0; layer < graph.layers.size(); ++layer) {
    auto& forward = graph.layers[layer].forward;
    forward = [stages = stage_of_layer_, layer,
               inner = std::move(forward)](const nn::Values& arguments) {
      ShardedParameters* const stage = layer < stages->size() ? (*stages)[layer] : nullptr;
      return stage ? stage->run_layer(static_cast<int>(layer), arguments, inner) : inner(arguments);
    };
  }
}

// In an evaluation the replicas may have different numbers of micro-batches. Each rank gathers as
// often as the one that has the most.
void StageReplicas::unshard(int stage, const pipeline::StageUse& use) {
  if (gathers_layers() && use.kind == pipeline::StageUse::Kind::Evaluation) {
    const at::Tensor most = at::full({1}, use.micro_batches, at::kLong);
    comm::with_purpose(
        [&] {
          return text("while the replicas of stage ", stage,
                      " compared their numbers of micro-batches");
        },
        [&] { groups_of(stage).all.all_reduce(most, comm::Reduce::Max).wait(); });
    missing_forwards_.at(stage) = static_cast<int>(most.item<std::int64_t>()) - use.micro_batches;
  }
  stages_.at(stage).unshard();
  // A collective. A rank that evaluates nothing takes part in it here too.
  if (const auto copied = copied_.find(stage); copied != copied_.end())
    for (auto& one : copied->second) one.value = stages_.at(stage).whole(one.parameter);
}

at::Tensor StageReplicas::value_for_copies(int stage, const at::Tensor& parameter) {
  for (auto& one : copied_.at(stage))
    if (one.parameter.is_same(parameter)) return one.value;
  throw StateError(text("internal: no value for the copies of a parameter of stage ", stage));
}

void StageReplicas::reshard(int stage) {
  if (const auto copied = copied_.find(stage); copied != copied_.end())
    for (auto& one : copied->second) one.value.reset();
  stages_.at(stage).reshard();
}

void StageReplicas::abandon(int stage) {
  missing_forwards_.at(stage) = 0;
  stages_.at(stage).abandon();
}

void StageReplicas::end_forwards(int stage) {
  for (int& missing = missing_forwards_.at(stage); missing > 0; --missing)
    stages_.at(stage).shadow_forward();
}

std::vector<optim::GradientNorm> StageReplicas::norm(const std::vector<int>& stages, double p) {
  NamedTensors own;
  for (const int stage : stages)
    for (auto& parameter : stages_.at(stage).named_parameters())
      own.push_back(std::move(parameter));
  const bool is_sharded = options_.level != ShardLevel::None;
  if (!is_sharded && !sliced_.any()) return optim::gradient_norms(without_names(own), p);
  std::vector<comm::Group> shards;
  if (is_sharded) shards.push_back(groups_of(stages.front()).shard);
  const double norm = gradient_norm::norm_over_slices(own, sliced_, shards, p);
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
  std::vector<std::function<void()>> staged;  // all is read and checked before the first change
  for (auto& [stage, sharded] : stages_)
    staged.push_back(sharding::stage_load(saved, sharded, optimizer_of(stage, optimizers), others));
  for (const auto& write : staged) write();
}

// The collectives follow the order of an evaluation.
void StageReplicas::evaluate_nothing() {
  for (const auto& [stage, sharded] : stages_) {
    unshard(stage, {.kind = pipeline::StageUse::Kind::Evaluation, .micro_batches = 0});
    end_forwards(stage);
  }
  for (const auto& [stage, sharded] : stages_) reshard(stage);
}

}  // namespace trestle::parallel
