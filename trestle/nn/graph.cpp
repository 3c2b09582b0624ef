#include "trestle/nn/graph.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/error_context.h"
#include "trestle/device/keyed_random.h"
#include "trestle/device/layer_scope.h"
#include "trestle/nn/segment.h"
#include "trestle/nn/wiring.h"

namespace trestle::nn {

namespace {

int layer_count(const Graph& graph) { return static_cast<int>(graph.layers.size()); }

at::Device device_of(const Layer& layer, const Values& arguments) {
  for (const Value& argument : arguments) {
    if (argument.defined()) return argument.device();
  }
  for (const at::Tensor& parameter : layer.parameters()) return parameter.device();
  return at::kCPU;
}

Values run_all(const Graph& graph, const Values& inputs, const RunKey* key) {
  if (static_cast<int>(inputs.size()) != graph.inputs) {
    throw UsageError(
        text("the model takes ", graph.inputs, " input tensor(s) but got ", inputs.size()));
  }
  std::vector<ValueId> given;
  for (int i = 0; i < graph.inputs; ++i) given.push_back({model_input, i});
  std::vector<ValueId> returned;
  for (const Edge& edge : graph.edges) {
    if (edge.to_layer == layer_count(graph))
      returned.push_back({edge.from_layer, edge.from_output});
  }
  return Segment(graph, 0, layer_count(graph), std::move(given), std::move(returned))
      .run(inputs, {}, key)
      .outputs;
}

// The number of outputs of layer `index` that the edges need, for layers whose outputs are known
// only after a call.
std::size_t outputs_needed(const Graph& graph, int index) {
  int needed = 0;
  for (const Edge& edge : graph.edges) {
    if (edge.from_layer == index) needed = std::max(needed, edge.from_output + 1);
  }
  return static_cast<std::size_t>(needed);
}

}  // namespace

Values run(const Graph& graph, const Values& inputs) { return run_all(graph, inputs, nullptr); }

Values run(const Graph& graph, const Values& inputs, const RunKey& key) {
  return run_all(graph, inputs, &key);
}

Values run_layer(const Graph& graph, int index, const Values& arguments, const RunKey* key) {
  const Layer& layer = graph.layers.at(static_cast<std::size_t>(index));
  try {
    const LayerScope scope(layer.name);
    std::optional<KeyedRandom> random;
    std::optional<LayerRun> inner_keys;
    if (key) {
      // Also in evaluation mode: a layer may draw there, and may be recomputed.
      inner_keys.emplace(*key, index);
      random.emplace(device_of(layer, arguments), inner_keys->seed());
    }
    Values outputs = layer.forward(arguments);
    const bool known = layer.outputs >= 0;
    const std::size_t needed =
        known ? static_cast<std::size_t>(layer.outputs) : outputs_needed(graph, index);
    if (known ? outputs.size() != needed : outputs.size() < needed) {
      throw UsageError(text("layer '", layer.name, "' returned ", outputs.size(),
                            " tensor(s), but its wiring needs ", needed));
    }
    return outputs;
  } catch (...) {
    rethrow_with_context(text("in layer '", layer.name, "' (arguments ", describe(arguments), ")"));
  }
}

ParameterSlices slices_of(const Graph& graph) {
  ParameterSlices all;
  for (const Layer& layer : graph.layers)
    for (const auto& [name, slice] : layer.parameter_slices())
      all.emplace(layer.name + "." + name, slice);
  return all;
}

std::pair<int, std::string> owner_of(const Graph& graph, const ParameterTie& tie) {
  std::pair<int, std::string> root{tie.owner, tie.owner_parameter};
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& other : graph.ties) {
      if (root != std::pair(other.layer, other.parameter)) continue;
      root = {other.owner, other.owner_parameter};
      moved = true;
      break;
    }
  }
  return root;
}

void tie_again(const Graph& graph) {
  for (const ParameterTie& tie : graph.ties) {
    const LazyModule& user = graph.layers.at(static_cast<std::size_t>(tie.layer)).module;
    const auto [owning_layer, name] = owner_of(graph, tie);
    const auto owner = graph.layers.at(static_cast<std::size_t>(owning_layer)).module.made();
    if (!user.made() || !owner) continue;  // they are tied when they are created
    at::Tensor value = find_parameter(*owner, name);
    at::Tensor copy = find_parameter(*user.made(), tie.parameter);
    if (copy.is_same(value)) continue;
    if (copy.device() == value.device()) {
      user.replace_tied(tie.parameter, value);
    } else {
      const at::NoGradGuard no_grad;
      copy.copy_(value);
    }
  }
}

void check(const Graph& graph) { throw_mistakes(wiring_mistakes(graph)); }

}  // namespace trestle::nn
