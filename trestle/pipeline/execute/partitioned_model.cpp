#include "trestle/pipeline/execute/partitioned_model.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/device/error_context.h"
#include "trestle/device/layer_scope.h"
#include "trestle/device/virtual_device.h"

namespace trestle::pipeline {
namespace {

// Recomputation and micro-batches do not help here: these are weights, before the first batch.
[[noreturn]] void rethrow_for_weights(const nn::Layer& layer, at::Device device) {
  const auto report =
      device.is_privateuseone() ? last_out_of_memory(device) : std::optional<OutOfMemoryReport>();
  if (!report)
    rethrow_with_context(
        text("while making and moving layer '", layer.name, "' to ", device_name(device)));
  const std::string message =
      text(device_name(device), " is out of memory while the weights of layer '", layer.name,
           "' are moved to it: asked ", format_bytes(report->requested), ", ",
           format_bytes(report->in_use), " of ", format_bytes(report->budget),
           " in use.\n         Use more devices, fewer layers in this stage, or a larger budget "
           "(virtual:NxBYTES).");
  throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, message);
}

void move_layer(const nn::Graph& graph, int number, TiedCopies& ties, at::Device device,
                at::MemoryFormat format) {
  const nn::Layer& layer = graph.layers[number];
  try {
    const LayerScope scope(layer.name);
    ties.make_layer(number, device);
    layer.to(device);  // makes the layer first if needed: one at a time
    layer.to(format);
  } catch (const c10::OutOfMemoryError&) {
    rethrow_for_weights(layer, device);
  } catch (...) {
    rethrow_with_context(
        text("while making and moving layer '", layer.name, "' to ", device_name(device)));
  }
}

StageList make_stages(const nn::Graph& graph, const Cut& cut, const std::vector<Device>& devices,
                      TiedCopies& ties, at::MemoryFormat format,
                      const std::vector<int>& rank_of_stage, int checkpoint_segments,
                      std::optional<int> own_rank) {
  std::vector<Stage> stages;
  for (std::size_t s = 0; s < cut.stages.size(); ++s) {
    if (own_rank && rank_of_stage[s] != *own_rank) continue;
    const at::Device device = devices[devices.size() == 1 ? 0 : stages.size()].torch;
    try {
      for (int i = cut.stages[s].first_layer; i < cut.stages[s].last_layer; ++i)
        move_layer(graph, i, ties, device, format);
    } catch (...) {
      rethrow_with_context(text("in stage ", s));
    }
    stages.emplace_back(graph, cut, static_cast<int>(s), device, checkpoint_segments);
  }
  nn::check(graph);  // new layers may share parameters across stages
  return {static_cast<int>(cut.stages.size()), std::move(stages)};
}

template <class Get>
NamedTensors named_of(const std::vector<nn::Layer>& layers, Get get) {
  NamedTensors all;
  for (const auto& layer : layers) {
    for (auto& [name, tensor] : get(layer))
      all.emplace_back(layer.name + "." + name, std::move(tensor));
  }
  return all;
}

bool one_virtual_device_each(const StageList& stages, const std::vector<int>& rank_of_stage) {
  std::map<int, at::Device> device_of_rank;
  std::map<std::string, int> rank_of_device;
  for (const Stage& stage : stages) {
    const at::Device device = stage.device();
    const int rank = rank_of_stage[stage.index()];
    if (!device.is_privateuseone() ||
        device_of_rank.try_emplace(rank, device).first->second != device ||
        rank_of_device.try_emplace(device.str(), rank).first->second != rank)
      return false;
  }
  return true;
}

}  // namespace

PartitionedModel::PartitionedModel(nn::Graph model, const std::vector<int>& balance,
                                   const std::vector<Device>& devices,
                                   const std::vector<int>& rank_of_stage, int threads,
                                   at::MemoryFormat format, int checkpoint_segments,
                                   std::optional<int> own_rank, Replicated replicated)
    : graph(std::move(model)),
      cut(pipeline::cut(graph, balance)),
      ties(
          graph, cut,
          replicated == Replicated::No ? TiedCopies::Memory::Shared : TiedCopies::Memory::Separate),
      stages(make_stages(graph, cut, devices, ties, format, rank_of_stage, checkpoint_segments,
                         own_rank)),
      executor(rank_of_stage, stages, threads, own_rank, replicated),
      one_device_each(one_virtual_device_each(stages, rank_of_stage)),
      can_lend_cores(one_device_each && !own_rank) {
  ties.find_owners(stages);
}

std::vector<nn::Layer> PartitionedModel::layers() const {
  std::vector<nn::Layer> result;
  for (const Stage& stage : stages)
    result.insert(result.end(), graph.layers.begin() + stage.plan().first_layer,
                  graph.layers.begin() + stage.plan().last_layer);
  return result;
}

NamedTensors PartitionedModel::named_parameters() const {
  return named_of(layers(), [](const nn::Layer& layer) { return layer.named_parameters(); });
}

NamedTensors PartitionedModel::named_buffers() const {
  return named_of(layers(), [](const nn::Layer& layer) { return layer.named_buffers(); });
}

nn::ParameterSlices PartitionedModel::parameter_slices() const {
  nn::Graph own;
  own.layers = layers();
  return nn::slices_of(own);
}

void PartitionedModel::remember(const MiniBatchState& step) {
  std::lock_guard lock(record_mutex_);
  record_ = step.record;
  table_ = step.table();
}

std::pair<schedule::Timeline, double> PartitionedModel::timeline_and_begin() const {
  std::lock_guard lock(record_mutex_);
  if (table_.stages == 0) return {};
  return {record_.timeline(table_), record_.begin};
}

schedule::Timeline PartitionedModel::timeline() const { return timeline_and_begin().first; }

}  // namespace trestle::pipeline
