#include "trestle/train/stage_replicas.h"

#include "trestle/nn/layers.h"

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

}  // namespace trestle::train
