#include "trestle/nn/graph.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/device/keyed_random.h"
#include "trestle/device/layer_scope.h"
#include "trestle/nn/error_context.h"
#include "trestle/nn/wiring.h"

namespace trestle::nn {

namespace {

int layer_count(const Graph& graph) { return static_cast<int>(graph.layers.size()); }

at::Device device_of(const Layer& layer, const Values& arguments) {
  for (const Value& argument : arguments) {
    if (argument.defined()) return argument.device();
  }
  if (layer.module) {
    for (const at::Tensor& parameter : layer.module->parameters()) return parameter.device();
  }
  return at::kCPU;
}

// Where a value comes from, and how many arguments still wait for it: the last one takes it out, so
// that no tensor lives longer than the plain model needs it.
struct Slot {
  Value value = {};
  int uses = 0;
};

class Slots {
 public:
  Slots(const Graph& graph, const Values& inputs) {
    for (const Edge& edge : graph.edges) ++slots_[{edge.from_layer, edge.from_output}].uses;
    put(model_input, inputs);
  }

  void put(int layer, Values values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto slot = slots_.find({layer, static_cast<int>(i)});
      if (slot != slots_.end()) slot->second.value = std::move(values[i]);
    }
  }

  Value take(const Edge& edge) {
    Slot& slot = slots_.at({edge.from_layer, edge.from_output});
    if (--slot.uses > 0) return slot.value;
    return std::move(slot.value);
  }

 private:
  std::map<std::pair<int, int>, Slot> slots_;
};

Values run_all(const Graph& graph, const Values& inputs, const RunKey* key) {
  if (static_cast<int>(inputs.size()) != graph.inputs) {
    throw UsageError(
        text("the model takes ", graph.inputs, " input tensor(s) and was given ", inputs.size()));
  }
  Slots slots(graph, inputs);
  auto edge = graph.edges.begin();
  const auto arguments_of = [&](int layer) {
    Values arguments;
    for (; edge != graph.edges.end() && edge->to_layer == layer; ++edge) {
      arguments.push_back(slots.take(*edge));
    }
    return arguments;
  };
  for (int layer = 0; layer < layer_count(graph); ++layer) {
    slots.put(layer, run_layer(graph, layer, arguments_of(layer), key));
  }
  return arguments_of(layer_count(graph));
}

// How many outputs of layer `index` the edges need: only checked at run time where just a call can
// tell.
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
    if (key && (!layer.module || layer.module->is_training())) {
      random.emplace(device_of(layer, arguments),
                     keyed_seed(key->seed, key->step, index, key->micro_batch));
    }
    Values outputs = layer.forward(arguments);
    const bool known = layer.outputs >= 0;
    const std::size_t needed =
        known ? static_cast<std::size_t>(layer.outputs) : outputs_needed(graph, index);
    if (known ? outputs.size() != needed : outputs.size() < needed) {
      throw UsageError(text("layer '", layer.name, "' returned ", outputs.size(),
                            " tensor(s), its wiring needs ", needed));
    }
    return outputs;
  } catch (...) {
    rethrow_with_context(text("in layer '", layer.name, "' (arguments ", describe(arguments), ")"));
  }
}

std::string describe(const Values& values) {
  std::vector<std::string> words;
  for (const Value& value : values) {
    if (value.defined()) {
      words.push_back(text("[", join(value.sizes(), ", "), "] ", value.scalar_type()));
    } else {
      words.emplace_back("None");
    }
  }
  return words.empty() ? "none" : join(words, ", ");
}

void check(const Graph& graph) { throw_mistakes(wiring_mistakes(graph)); }

}  // namespace trestle::nn
