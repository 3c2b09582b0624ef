#include "trestle/pipeline/partitioned_model.h"

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/layer_scope.h"
#include "trestle/nn/error_context.h"

namespace trestle::pipeline {
namespace {

void move_layer(const nn::Layer& layer, at::Device device) {
  try {
    const LayerScope scope(layer.name);
    layer.to(device);  // made first, where it has not been: one layer at a time
  } catch (...) {
    nn::rethrow_with_context(
        text("while making and moving layer '", layer.name, "' to ", device_name(device)));
  }
}

std::vector<Stage> make_stages(const nn::Graph& graph, const Cut& cut,
                               const std::vector<Device>& devices) {
  std::vector<Stage> stages;
  for (std::size_t s = 0; s < cut.stages.size(); ++s) {
    const at::Device device = devices[devices.size() == 1 ? 0 : s].torch;
    try {
      for (int i = cut.stages[s].first_layer; i < cut.stages[s].last_layer; ++i)
        move_layer(graph.layers[i], device);
    } catch (...) {
      nn::rethrow_with_context(text("in stage ", s));
    }
    stages.emplace_back(graph, cut, static_cast<int>(s), device);
  }
  nn::check(graph);  // layers that were made just now may share what was not to be shared
  return stages;
}

int rank_count(const std::vector<int>& rank_of_stage) {
  return *std::max_element(rank_of_stage.begin(), rank_of_stage.end()) + 1;
}

}  // namespace

PartitionedModel::PartitionedModel(nn::Graph model, const std::vector<int>& balance,
                                   const std::vector<Device>& devices,
                                   const std::vector<int>& rank_of_stage, int threads)
    : graph(std::move(model)),
      cut(pipeline::cut(graph, balance)),
      stages(make_stages(graph, cut, devices)),
      executor(rank_count(rank_of_stage), stages, threads) {}

void PartitionedModel::set_timeline(schedule::Timeline timeline) {
  std::lock_guard lock(timeline_mutex_);
  timeline_ = std::move(timeline);
}

schedule::Timeline PartitionedModel::timeline() const {
  std::lock_guard lock(timeline_mutex_);
  return timeline_;
}

}  // namespace trestle::pipeline
