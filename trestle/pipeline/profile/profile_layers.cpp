#include "trestle/pipeline/profile/profile_layers.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "trestle/base/median.h"
#include "trestle/base/stopwatch.h"
#include "trestle/device/device.h"
#include "trestle/device/stream_event.h"
#include "trestle/device/transfer.h"
#include "trestle/device/unlimited_budgets.h"
#include "trestle/nn/boundary.h"
#include "trestle/nn/buffer_keeper.h"
#include "trestle/nn/gradient_keeper.h"
#include "trestle/nn/training_mode_scope.h"
#include "trestle/pipeline/execute/split_backward.h"
#include "trestle/pipeline/profile/profile_memory.h"

namespace trestle {
namespace {

using nn::ValueId;
using pipeline::bytes_of;

// Moves a layer, and the layers that own its tied parameters, to a device while it lives.
class LayersOnDevice {
 public:
  LayersOnDevice(const nn::Graph& graph, int layer, at::Device device) {
    note_home(graph.layers[static_cast<std::size_t>(layer)]);
    for (const auto& tie : graph.ties)
      if (tie.layer == layer) note_home(graph.layers[static_cast<std::size_t>(tie.owner)]);
    for (const auto& [moved, home] : homes_) moved->to(device);
  }
  ~LayersOnDevice() {
    for (const auto& [layer, home] : homes_) layer->to(home);
  }
  LayersOnDevice(const LayersOnDevice&) = delete;
  LayersOnDevice& operator=(const LayersOnDevice&) = delete;

  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> result;
    for (const auto& [layer, home] : homes_) {
      for (auto& parameter : layer->parameters()) result.push_back(parameter);
    }
    return result;
  }

 private:
  // Before any of them moves: a tied layer shares its owner's tensor.
  void note_home(const nn::Layer& layer) {
    at::Device home = at::kCPU;
    for (const auto& parameter : layer.parameters()) home = parameter.device();
    homes_.emplace_back(&layer, home);
  }
  std::vector<std::pair<const nn::Layer*, at::Device>> homes_;
};

// The arguments of a layer: copies, because it may work in place. Those that would need a gradient
// in the model need one here.
struct Arguments {
  nn::Values values;
  nn::GradientSink sink;
};

// [argument] the value that `layer` uses; {model_input - 1, 0} for none.
std::vector<ValueId> values_used_by(const nn::Graph& graph, int layer) {
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
                       const std::map<ValueId, at::Tensor>& values,
                       const std::set<ValueId>& with_gradient, at::Device device) {
  const std::vector<ValueId> taken = values_used_by(graph, layer);
  Arguments result{.values = nn::Values(taken.size()), .sink = nn::GradientSink(taken.size())};
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const auto value = values.find(taken[i]);
    if (value == values.end() || !value->second.defined()) continue;
    const at::Tensor copy =
        device.is_cpu() ? value->second.clone() : to_device(value->second, device);
    result.values[i] = with_gradient.contains(taken[i]) ? result.sink.begin(i, copy) : copy;
  }
  return result;
}

// A backward of a layer's results, which need not exist any more.
struct LayerBackward {
  torch::autograd::edge_list roots = {};
  std::vector<at::Tensor> gradients = {};

  explicit LayerBackward(const nn::Values& results) {
    for (const auto& result : results) {
      if (!result.defined() || !result.requires_grad()) continue;
      roots.push_back(torch::autograd::impl::gradient_edge(result));
      gradients.push_back(at::ones_like(result));
    }
  }

  // Calls the engine itself: autograd::grad() keeps its results alive in the device's thread for a
  // moment longer.
  void run() const {
    if (roots.empty()) return;
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  }
};

class LayerMeter {
 public:
  LayerMeter(const nn::Graph& graph, at::Device device, MessageLog* log = nullptr,
             const KnownLayers& known = {}, SplitBackwards split = SplitBackwards::Leave)
      : graph_(graph), device_(device), log_(log), known_(known), split_(split) {}

  plan::LayerProfile measure(const nn::Values& micro_batch) {
    plan::LayerProfile profile;
    for (std::size_t i = 0; i < micro_batch.size(); ++i) {
      const at::Tensor& given = micro_batch[i];
      add({nn::model_input, static_cast<int>(i)},
          given.defined() ? to_device(given, at::kCPU).detach() : given, profile);
    }
    for (int layer = 0; layer < static_cast<int>(graph_.layers.size()); ++layer) {
      if (const int twin = measured_twin(layer); twin >= 0)
        take_twin(layer, twin, profile);
      else if (known_.profile != nullptr && known_.is_known.at(static_cast<std::size_t>(layer)))
        take_known(layer, profile);
      else
        measure_layer(layer, profile);
    }
    for (const auto& edge : graph_.edges) {
      auto& value = profile.values[number_.at({edge.from_layer, edge.from_output})];
      if (value.to.empty() || value.to.back() != edge.to_layer) value.to.push_back(edge.to_layer);
      if (device_.is_cpu() && edge.to_layer < static_cast<int>(graph_.layers.size()))
        value.saved_by = value.to;
    }
    const std::vector<ValueId> outputs =
        values_used_by(graph_, static_cast<int>(graph_.layers.size()));
    if (outputs.size() == 1)
      if (const auto value = values_.find(outputs[0]); value != values_.end())
        if (value->second.defined()) {
          profile.output_sizes = value->second.sizes().vec();
          profile.output_number_bytes = static_cast<int>(value->second.element_size());
        }
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
    // One layer at a time, so that a model which fits no device can be measured.
    const std::shared_ptr<void> for_now = layer.module.make_temporarily();
    const nn::TrainingModeScope training({layer}, nn::TrainingModeScope::Mode::Train);
    const nn::BufferKeeper keep_buffers(layer.buffers());
    const LayersOnDevice on_device(graph_, index, device_);
    const nn::GradientKeeper keep_gradients(on_device.parameters());
    profile.layers.push_back({.name = layer.name,
                              .parameters = bytes_of(layer.parameters()),
                              .buffers = bytes_of(layer.buffers())});
    plan::LayerCost& cost = profile.layers.back();
    for (const at::Tensor& parameter : layer.parameters())
      if (!parameter.requires_grad()) cost.frozen += bytes_of({parameter});
    add_ties_of_owner(index, profile);
    measure_time(index, cost);
    measure_memory(index, cost, profile);
    if (split_ == SplitBackwards::Measure) measure_split(index, cost);
  }

  int kind_of(int index) const {
    return known_.kind.empty() ? -1 : known_.kind.at(static_cast<std::size_t>(index));
  }

  // An earlier layer of this kind with such arguments; -1 = there is none.
  int measured_twin(int index) const {
    if (kind_of(index) < 0) return -1;
    for (int other = 0; other < index; ++other)
      if (kind_of(other) == kind_of(index) && have_like_arguments(other, index)) return other;
    return -1;
  }

  bool have_like_arguments(int one, int other) const {
    const auto a = values_used_by(graph_, one), b = values_used_by(graph_, other);
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto x = values_.find(a[i]), y = values_.find(b[i]);
      if ((x == values_.end()) != (y == values_.end())) return false;
      if (x == values_.end()) continue;
      if (x->second.defined() != y->second.defined()) return false;
      if (!x->second.defined()) continue;
      if (x->second.sizes() != y->second.sizes() ||
          x->second.scalar_type() != y->second.scalar_type() ||
          with_gradient_.contains(a[i]) != with_gradient_.contains(b[i]))
        return false;
    }
    return true;
  }

  // The layer keeps of its arguments and results what `from` does in `source`, whose values have
  // the same numbers.
  void take_saved(const plan::LayerProfile& source, int from, int index,
                  plan::LayerProfile& profile) const {
    const auto take = [&](ValueId theirs, ValueId own) {
      const auto number = number_.find(theirs);
      if (number == number_.end()) return;
      const auto& saved = source.values[number->second].saved_by;
      if (std::find(saved.begin(), saved.end(), from) != saved.end())
        profile.values[number_.at(own)].saved_by.push_back(index);
    };
    for (int r = 0; number_.contains({from, r}); ++r) take({from, r}, {index, r});
    const auto theirs = values_used_by(graph_, from), own = values_used_by(graph_, index);
    for (std::size_t a = 0; a < own.size(); ++a) take(theirs[a], own[a]);
  }

  // Its results are views of the same arguments as those of `from` in `source`.
  void take_views(const plan::LayerProfile& source, int from, int index,
                  plan::LayerProfile& profile) const {
    const auto theirs = values_used_by(graph_, from), own = values_used_by(graph_, index);
    for (int r = 0; number_.contains({from, r}); ++r) {
      const int view_of = source.values[number_.at({from, r})].view_of;
      for (std::size_t a = 0; view_of >= 0 && a < theirs.size(); ++a)
        if (const auto number = number_.find(theirs[a]);
            number != number_.end() && static_cast<int>(number->second) == view_of)
          profile.values[number_.at({index, r})].view_of = static_cast<int>(number_.at(own[a]));
    }
  }

  void take_twin(int index, int twin, plan::LayerProfile& profile) {
    profile.layers.push_back(profile.layers.at(static_cast<std::size_t>(twin)));
    profile.layers.back().name = graph_.layers[static_cast<std::size_t>(index)].name;
    add_ties_of_owner(index, profile);
    for (int r = 0; number_.contains({twin, r}); ++r) {
      if (with_gradient_.contains({twin, r})) with_gradient_.insert({index, r});
      add({index, r}, values_.at({twin, r}), profile);
    }
    take_saved(profile, twin, index, profile);
    take_views(profile, twin, index, profile);
  }

  // Only the results are computed, for the layers that use them.
  void take_known(int index, plan::LayerProfile& profile) {
    const nn::Layer& layer = graph_.layers[static_cast<std::size_t>(index)];
    const std::shared_ptr<void> for_now = layer.module.make_temporarily();
    const nn::TrainingModeScope training({layer}, nn::TrainingModeScope::Mode::Train);
    const nn::BufferKeeper keep_buffers(layer.buffers());
    const LayersOnDevice on_device(graph_, index, device_);
    profile.layers.push_back(known_.profile->layers.at(static_cast<std::size_t>(index)));
    add_ties_of_owner(index, profile);
    const Arguments arguments = arguments_of(graph_, index, values_, with_gradient_, device_);
    const nn::RunKey key;
    add_results(index, nn::run_layer(graph_, index, arguments.values, &key), profile);
    take_saved(*known_.profile, index, index, profile);
    take_views(*known_.profile, index, index, profile);
  }

  // The parameters of a layer that exists, with the other layers that use them.
  void add_ties_of_owner(int index, plan::LayerProfile& profile) const {
    std::map<std::string, std::vector<int>> users;  // by the parameter's name
    for (const auto& tie : graph_.ties) {
      const auto [owner, parameter] = nn::owner_of(graph_, tie);
      if (owner == index) users[parameter].push_back(tie.layer);
    }
    for (const auto& [name, parameter] :
         graph_.layers[static_cast<std::size_t>(index)].named_parameters()) {
      if (const auto found = users.find(name); found != users.end())
        profile.ties.push_back({.owner = index,
                                .users = found->second,
                                .bytes = bytes_of({parameter}),
                                .frozen = !parameter.requires_grad()});
    }
  }

  // The first round warms up, and the lower median of the later rounds counts. A short run has more
  // rounds, because its time varies; a long one is not repeated.
  void measure_time(int index, plan::LayerCost& cost) {
    constexpr double long_run = 0.25, enough = 0.02;
    std::vector<std::pair<double, double>> runs;  // seconds of both, and of the forward
    double measured = 0;
    for (int round = 0; round < 3 || measured < enough; ++round) {
      const Arguments arguments = arguments_of(graph_, index, values_, with_gradient_, device_);
      const nn::RunKey key;
      device::synchronize(device_);
      if (log_) log_->start();
      const Stopwatch watch;
      const nn::Values results = nn::run_layer(graph_, index, arguments.values, &key);
      device::synchronize(device_);
      const double forward = watch.seconds();
      if (log_) cost.forward_messages = layer_messages(log_->take());
      if (log_) log_->start();
      LayerBackward(results).run();
      device::synchronize(device_);
      const double both = watch.seconds();
      if (log_) cost.backward_messages = layer_messages(log_->take());
      if (round == 0) continue;
      runs.emplace_back(both, forward);
      measured += both;
      if (both > long_run) break;
    }
    const auto middle = runs.begin() + (std::ssize(runs) - 1) / 2;
    std::nth_element(runs.begin(), middle, runs.end());
    cost.forward = middle->second;
    cost.backward = middle->first - middle->second;
  }

  // I and then W of one run: seconds, what is left between them, and W's peak beyond it.
  plan::LayerCost::Split run_split(int index) {
    Arguments arguments = arguments_of(graph_, index, values_, with_gradient_, device_);
    const Bytes before = current() - bytes_of(arguments.values);
    torch::autograd::edge_list inputs;
    for (std::size_t i = 0; i < arguments.values.size(); ++i)
      inputs.push_back(arguments.sink.edge(i));
    const nn::RunKey key;
    nn::Values results = nn::run_layer(graph_, index, arguments.values, &key);
    pipeline::GradientRoots roots;
    {
      LayerBackward whole(results);
      roots = {.edges = std::move(whole.roots), .gradients = std::move(whole.gradients)};
    }
    results.clear();
    arguments.values.clear();
    device::synchronize(device_);
    const Stopwatch watch;
    pipeline::SplitBackward split = pipeline::backward_to_inputs(roots, inputs);
    device::synchronize(device_);
    const double middle = watch.seconds();
    split.input_gradients.clear();
    roots = {};
    device::synchronize(device_);
    const Bytes kept = std::max<Bytes>(0, current() - before);
    reset_peak_memory(device_);
    const double begin = watch.seconds();
    split.weights.accumulate();
    device::synchronize(device_);
    const double end = watch.seconds();
    return {.input_grad = middle,
            .weight_grad = end - begin,
            .kept_for_weights = kept,
            .transient_weight_grad = std::max<Bytes>(0, peak() - before - kept)};
  }

  // As measure_time(): the first round warms up.
  void measure_split(int index, plan::LayerCost& cost) {
    constexpr double long_run = 0.25, enough = 0.02;
    std::vector<double> inputs, weights;
    double measured = 0;
    for (int round = 0; round < 3 || measured < enough; ++round) {
      cost.split = run_split(index);
      if (round == 0) continue;
      inputs.push_back(cost.split->input_grad);
      weights.push_back(cost.split->weight_grad);
      const double both = cost.split->input_grad + cost.split->weight_grad;
      measured += std::max(both, 1e-5);
      if (both > long_run) break;
    }
    cost.split->input_grad = median(inputs);
    cost.split->weight_grad = median(weights);
  }

  // [result] the argument that it is a view of, which owns its memory, or -1.
  static std::vector<int> find_views(const nn::Values& results, const nn::Values& arguments) {
    std::vector<int> argument_of(results.size(), -1);
    for (std::size_t r = 0; r < results.size(); ++r)
      for (std::size_t a = 0; a < arguments.size() && argument_of[r] < 0; ++a)
        if (nn::may_share_memory(results[r], arguments[a])) argument_of[r] = static_cast<int>(a);
    return argument_of;
  }

  static torch::autograd::edge_list edges_of(const nn::Values& results) {
    torch::autograd::edge_list edges;
    for (const auto& result : results) {
      if (result.defined() && result.requires_grad())
        edges.push_back(torch::autograd::impl::gradient_edge(result));
    }
    return edges;
  }

  void add_results(int index, const nn::Values& results, plan::LayerProfile& profile) {
    for (std::size_t r = 0; r < results.size(); ++r) {
      at::Tensor copy = results[r];
      const ValueId id{index, static_cast<int>(r)};
      if (copy.defined() && copy.requires_grad()) with_gradient_.insert(id);
      if (copy.defined()) copy = to_device(copy.detach(), at::kCPU).clone();
      add(id, copy, profile);
    }
  }

  // Clears the value. Returns how many of its bytes stay in use: the graph has saved them.
  Bytes clear_and_count(at::Tensor& value) const {
    const Bytes memory = nn::memory_of(value);
    const Bytes before = current();
    value = at::Tensor();
    return memory > 0 ? std::max<Bytes>(0, memory - (before - current())) : 0;
  }

  void measure_memory(int index, plan::LayerCost& cost, plan::LayerProfile& profile) {
    Arguments arguments = arguments_of(graph_, index, values_, with_gradient_, device_);
    const Bytes before = current() - bytes_of(arguments.values);
    reset_peak_memory(device_);
    const nn::RunKey key;
    nn::Values results = nn::run_layer(graph_, index, arguments.values, &key);
    const Bytes most = peak();
    torch::autograd::edge_list graph = edges_of(results);
    const std::vector<int> views = find_views(results, arguments.values);
    add_results(index, results, profile);
    const auto used = values_used_by(graph_, index);
    Bytes saved = 0;
    for (std::size_t r = 0; r < results.size(); ++r) {
      plan::ValueCost& value = profile.values[number_.at({index, static_cast<int>(r)})];
      if (const int argument = views[r]; argument >= 0) {
        value.view_of = static_cast<int>(number_.at(used[static_cast<std::size_t>(argument)]));
        results[r] = at::Tensor();
        continue;
      }
      const Bytes kept = clear_and_count(results[r]);
      saved += kept;
      if (kept > 0) value.saved_by.push_back(index);
    }
    for (std::size_t a = 0; a < used.size(); ++a) {
      const Bytes kept = clear_and_count(arguments.values[a]);
      saved += kept;
      if (kept > 0) profile.values[number_.at(used[a])].saved_by.push_back(index);
    }
    cost.inner = std::max<Bytes>(0, current() - before - saved);
    graph.clear();
    measure_transients(index, most, cost);
  }

  // `most`: the peak of a forward. The backward begins with what the graph keeps, as in the model,
  // and frees it as it goes.
  void measure_transients(int index, Bytes most, plan::LayerCost& cost) {
    Arguments arguments = arguments_of(graph_, index, values_, with_gradient_, device_);
    const nn::RunKey key;
    nn::Values results = nn::run_layer(graph_, index, arguments.values, &key);
    cost.transient_forward = std::max<Bytes>(0, most - current());
    const LayerBackward backward(results);
    results.clear();
    arguments.values.clear();
    const Bytes kept = current() - bytes_of(backward.gradients);
    reset_peak_memory(device_);
    backward.run();
    cost.transient = std::max(cost.transient_forward, peak() - kept);
  }

  const nn::Graph& graph_;
  const at::Device device_;
  MessageLog* const log_;
  const KnownLayers known_;
  const SplitBackwards split_;
  std::map<ValueId, at::Tensor> values_;   // on the CPU
  std::set<ValueId> with_gradient_;        // the values that need one in the model
  std::map<ValueId, std::size_t> number_;  // of each in the profile
};

}  // namespace

// The meters of a device count what all threads do.
static std::mutex& one_measurement() {
  static std::mutex mutex;
  return mutex;
}

plan::LayerProfile profile_layers(const nn::Graph& graph, const nn::Values& micro_batch,
                                  at::Device device, MessageLog* log) {
  return profile_layers(graph, micro_batch, device, log, {});
}

plan::LayerProfile profile_layers(const nn::Graph& graph, const nn::Values& micro_batch,
                                  at::Device device, MessageLog* log, const KnownLayers& known,
                                  SplitBackwards split) {
  const std::lock_guard lock(one_measurement());
  const c10::InferenceMode normal(false);
  const UnlimitedBudgets no_budget({device});
  const nn::TrainingModeScope training(graph.layers,
                                       nn::TrainingModeScope::Mode::Train);  // makes all layers
  const at::AutoGradMode grad(true);
  return LayerMeter(graph, device, log, known, split).measure(micro_batch);
}

plan::LayerProfile profile_layers_one_by_one(const nn::Graph& graph, const nn::Values& micro_batch,
                                             at::Device device) {
  const std::lock_guard lock(one_measurement());
  const c10::InferenceMode normal(false);
  const UnlimitedBudgets no_budget({device});
  const at::AutoGradMode grad(true);
  return LayerMeter(graph, device).measure(micro_batch);
}

plan::LayerProfile profile_layers(const nn::Layers& model, const nn::Values& micro_batch,
                                  at::Device device, MessageLog* log) {
  return profile_layers(model.graph(), micro_batch, device, log);
}

}  // namespace trestle
