#include "trestle/pipeline/profile_layers.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "trestle/base/stopwatch.h"
#include "trestle/device/device.h"
#include "trestle/device/event.h"
#include "trestle/device/transfer.h"
#include "trestle/device/unlimited_budgets.h"
#include "trestle/nn/boundary.h"
#include "trestle/nn/buffer_keeper.h"
#include "trestle/nn/gradient_keeper.h"
#include "trestle/nn/training_mode_scope.h"
#include "trestle/pipeline/profile_memory.h"

namespace trestle {
namespace {

using nn::ValueId;
using pipeline::bytes_of;

// A layer, and the owners of what it shares, on another device while this lives.
class Visit {
 public:
  Visit(const nn::Graph& graph, int layer, at::Device device) {
    move(graph.layers[static_cast<std::size_t>(layer)], device);
    for (const auto& tie : graph.ties) {
      if (tie.layer == layer) move(graph.layers[static_cast<std::size_t>(tie.owner)], device);
    }
  }
  ~Visit() {
    for (const auto& [layer, home] : homes_) layer->to(home);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> result;
    for (const auto& [layer, home] : homes_) {
      for (auto& parameter : layer->parameters()) result.push_back(parameter);
    }
    return result;
  }

 private:
  void move(const nn::Layer& layer, at::Device device) {
    at::Device home = at::kCPU;
    for (const auto& parameter : layer.parameters()) home = parameter.device();
    homes_.emplace_back(&layer, home);
    layer.to(device);
  }
  std::vector<std::pair<const nn::Layer*, at::Device>> homes_;
};

// What reaches a layer: copies, since it may work in place, with a gradient where the model's would
// have one.
struct Arguments {
  nn::Values values;
  nn::GradientSink sink;
};

// The values that `layer` takes, by argument; {model_input - 1, 0} where it takes none.
std::vector<ValueId> taken_by(const nn::Graph& graph, int layer) {
  std::vector<ValueId> result;
  for (const auto& edge : graph.edges) {
    if (edge.to_layer != layer) continue;
    const auto argument = static_cast<std::size_t>(edge.to_argument);
    if (result.size() <= argument) result.resize(argument + 1, {nn::model_input - 1, 0});
    result[argument] = {edge.from_layer, edge.from_output};
  }
  return result;
}

Arguments arguments_of(const nn::Graph& graph, int layer,
                       const std::map<ValueId, at::Tensor>& values, at::Device device) {
  const std::vector<ValueId> taken = taken_by(graph, layer);
  Arguments result{.values = nn::Values(taken.size()), .sink = nn::GradientSink(taken.size())};
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const auto value = values.find(taken[i]);
    if (value == values.end() || !value->second.defined()) continue;
    const at::Tensor copy =
        device.is_cpu() ? value->second.clone() : to_device(value->second, device);
    const bool wanted = copy.is_floating_point() && taken[i].layer != nn::model_input;
    result.values[i] = wanted ? result.sink.begin(i, copy) : copy;
  }
  return result;
}

// The backward of one forward. libtorch's own entry, since autograd::grad() leaves what it returns
// with the device's thread for a moment longer.
void run_layer_backward(const nn::Values& results) {
  torch::autograd::edge_list roots;
  std::vector<at::Tensor> gradients;
  for (const auto& result : results) {
    if (!result.defined() || !result.requires_grad()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(result));
    gradients.push_back(at::ones_like(result));
  }
  if (roots.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

class LayerMeter {
 public:
  LayerMeter(const nn::Graph& graph, at::Device device) : graph_(graph), device_(device) {}

  plan::LayerProfile measure(const nn::Values& micro_batch) {
    plan::LayerProfile profile;
    for (std::size_t i = 0; i < micro_batch.size(); ++i) {
      const at::Tensor& given = micro_batch[i];
      add({nn::model_input, static_cast<int>(i)},
          given.defined() ? to_device(given, at::kCPU).detach() : given, profile);
    }
    for (int layer = 0; layer < static_cast<int>(graph_.layers.size()); ++layer)
      measure_layer(layer, profile);
    for (const auto& edge : graph_.edges) {
      auto& value = profile.values[number_.at({edge.from_layer, edge.from_output})];
      if (value.to.empty() || value.to.back() != edge.to_layer) value.to.push_back(edge.to_layer);
      if (device_.is_cpu() && edge.to_layer < static_cast<int>(graph_.layers.size()))
        value.saved_by = value.to;
    }
    for (const auto& tie : graph_.ties)
      profile.together.emplace_back(std::minmax(tie.layer, tie.owner));
    return profile;
  }

 private:
  Bytes current() const { return memory_usage(device_).current; }
  Bytes peak() const { return memory_usage(device_).peak; }

  void add(ValueId id, const at::Tensor& on_cpu, plan::LayerProfile& profile) {
    values_[id] = on_cpu;
    number_[id] = profile.values.size();
    profile.values.push_back(
        {.from = id.layer, .to = {}, .saved_by = {}, .bytes = bytes_of({on_cpu})});
  }

  void measure_layer(int index, plan::LayerProfile& profile) {
    const nn::Layer& layer = graph_.layers[static_cast<std::size_t>(index)];
    // One layer at a time: a model that fits no device whole can be measured.
    const std::shared_ptr<void> for_now = layer.module.make_temporarily();
    const nn::TrainingModeScope training({layer}, nn::TrainingModeScope::Mode::Train);
    const nn::BufferKeeper keep_buffers(layer.buffers());
    const Visit visit(graph_, index, device_);
    const nn::GradientKeeper keep_gradients(visit.parameters());
    profile.layers.push_back({.name = layer.name,
                              .parameters = bytes_of(layer.parameters()),
                              .buffers = bytes_of(layer.buffers())});
    plan::LayerCost& cost = profile.layers.back();
    time(index, cost);
    note_kept(index, cost, profile);
  }

  // The first round warms up; the faster of the others counts.
  void time(int index, plan::LayerCost& cost) {
    for (int round = 0; round < 3; ++round) {
      const Arguments arguments = arguments_of(graph_, index, values_, device_);
      const nn::RunKey key;
      device::synchronize(device_);
      const Stopwatch watch;
      const nn::Values results = nn::run_layer(graph_, index, arguments.values, &key);
      device::synchronize(device_);
      const double forward = watch.seconds();
      run_layer_backward(results);
      device::synchronize(device_);
      const double backward = watch.seconds() - forward;
      const bool better = forward + backward < cost.forward + cost.backward;
      if (round >= 2 && !better) continue;
      cost.forward = forward;
      cost.backward = backward;
    }
  }

  // Lets go of results and arguments one after the other: what that does not free the graph keeps.
  void note_kept(int index, plan::LayerCost& cost, plan::LayerProfile& profile) {
    Arguments arguments = arguments_of(graph_, index, values_, device_);
    const Bytes before = current() - bytes_of(arguments.values);
    reset_peak_memory(device_);
    const nn::RunKey key;
    nn::Values results = nn::run_layer(graph_, index, arguments.values, &key);
    Bytes most = peak();
    torch::autograd::edge_list graph;
    for (const auto& result : results) {
      if (result.defined() && result.requires_grad())
        graph.push_back(torch::autograd::impl::gradient_edge(result));
    }
    // A view of an argument is no memory of its own.
    std::vector<bool> view(results.size(), false);
    std::vector<bool> viewed(arguments.values.size(), false);
    for (std::size_t r = 0; r < results.size(); ++r) {
      for (std::size_t a = 0; a < viewed.size(); ++a) {
        if (nn::may_share_memory(results[r], arguments.values[a])) view[r] = viewed[a] = true;
      }
    }
    for (std::size_t r = 0; r < results.size(); ++r) {
      at::Tensor on_cpu = results[r];
      if (on_cpu.defined()) on_cpu = to_device(on_cpu.detach(), at::kCPU).clone();
      add({index, static_cast<int>(r)}, on_cpu, profile);
    }
    Bytes of_values = 0;
    const auto keeps = [&](at::Tensor& value) {
      const Bytes memory = nn::memory_of(value);
      const Bytes with = current();
      value = at::Tensor();
      const Bytes kept = memory - (with - current());
      of_values += std::max<Bytes>(0, kept);
      return memory > 0 && kept > 0;
    };
    for (std::size_t r = 0; r < results.size(); ++r) {
      if (!keeps(results[r]) || view[r]) continue;
      profile.values[number_.at({index, static_cast<int>(r)})].saved_by.push_back(index);
    }
    const auto taken = taken_by(graph_, index);
    for (std::size_t a = 0; a < taken.size(); ++a) {
      const bool kept = keeps(arguments.values[a]);
      if (kept && !viewed[a]) profile.values[number_.at(taken[a])].saved_by.push_back(index);
    }
    cost.inner = std::max<Bytes>(0, current() - before - of_values);
    graph.clear();
    arguments = arguments_of(graph_, index, values_, device_);
    results = nn::run_layer(graph_, index, arguments.values, &key);
    const Bytes kept = current();
    reset_peak_memory(device_);
    run_layer_backward(results);
    cost.transient_forward = std::max<Bytes>(0, most - kept);
    cost.transient = std::max(cost.transient_forward, peak() - kept);
  }

  const nn::Graph& graph_;
  const at::Device device_;
  std::map<ValueId, at::Tensor> values_;   // on the CPU
  std::map<ValueId, std::size_t> number_;  // of each in the profile
};

}  // namespace

plan::LayerProfile profile_layers(const nn::Graph& graph, const nn::Values& micro_batch,
                                  at::Device device) {
  const UnlimitedBudgets no_budget({device});
  const nn::TrainingModeScope training(graph.layers, nn::TrainingModeScope::Mode::Train);  // makes all
  const at::AutoGradMode grad(true);
  return LayerMeter(graph, device).measure(micro_batch);
}

plan::LayerProfile profile_layers_one_by_one(const nn::Graph& graph, const nn::Values& micro_batch,
                                             at::Device device) {
  const UnlimitedBudgets no_budget({device});
  const at::AutoGradMode grad(true);
  return LayerMeter(graph, device).measure(micro_batch);
}

plan::LayerProfile profile_layers(const nn::Layers& model, const nn::Values& micro_batch,
                                  at::Device device) {
  return profile_layers(model.graph(), micro_batch, device);
}

}  // namespace trestle
