#include "trestle/train/stage_replicas.h"

#include <ATen/Functions.h>
#include <torch/optim/optimizer.h>

#include "trestle/nn/layers.h"
#include "trestle/sharding/norm_over_ranks.h"

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

}  // namespace

void StageReplicas::take(Pipeline& pipeline) {
  const auto parameters = pipeline.named_parameters(), buffers = pipeline.named_buffers();
  const nn::Graph graph = pipeline.model().graph();
  std::size_t first = 0;
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    const auto last =
        first + static_cast<std::size_t>(pipeline.balance()[static_cast<std::size_t>(stage)]);
    if (pipeline.has_stage(stage)) {
      stages_.emplace(stage, Sharded(of_layers(graph, first, last, parameters),
                                     of_layers(graph, first, last, buffers), ranks_, options_));
      stages_.at(stage).release();
    }
    first = last;
  }
}

std::vector<optim::GradientNorm> StageReplicas::norm(const std::vector<int>& stages, double p) {
  std::vector<at::Tensor> own;
  for (const int stage : stages)
    for (auto& parameter : stages_.at(stage).parameters()) own.push_back(std::move(parameter));
  if (options_.level == ShardLevel::None) return optim::gradient_norms(own, p);
  const sharding::PartialNorm partial{p};
  const at::Tensor whole = at::full({1}, partial.of(own), at::kDouble);
  ranks_.shard.all_reduce(whole, partial.reduction()).wait();
  return {{.value = partial.norm(whole.item<double>()), .dtype = at::kDouble}};
}

void StageReplicas::step(int stage, torch::optim::Optimizer& optimizer) {
  optimizer.step();
  stages_.at(stage).shards_changed();
}

}  // namespace trestle::train
