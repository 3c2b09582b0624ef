#include "trestle/nn/wiring.h"

#include <algorithm>
#include <map>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::nn {

namespace {

using Mistakes = std::vector<std::string>;

std::string quoted(const std::string& name) { return "'" + name + "'"; }

void find_names_used_twice(const std::vector<Layer>& layers, Mistakes& mistakes) {
  std::map<std::string, int> uses;
  for (const Layer& layer : layers) ++uses[layer.name];
  for (const auto& [name, count] : uses) {
    if (name.empty()) mistakes.push_back(text(count, " layer(s) have no name"));
    if (!name.empty() && count > 1)
      mistakes.push_back(text(count, " layers are named ", quoted(name)));
  }
}

void find_modules_used_twice(const std::vector<Layer>& layers, Mistakes& mistakes) {
  std::map<const void*, const Layer*> owner;
  for (const Layer& layer : layers) {
    if (!layer.module) continue;
    const auto [first, is_new] = owner.emplace(layer.module.identity(), &layer);
    if (!is_new) {
      mistakes.push_back(
          text("layers ", quoted(first->second->name), " and ", quoted(layer.name),
               " are the same module; add a second one, or a function that calls it twice"));
    }
  }
}

// Only created modules have parameters to compare.
void find_shared_parameters(const std::vector<Layer>& layers, Mistakes& mistakes) {
  struct Owner {
    const Layer* layer;
    std::string name;
  };
  std::map<const c10::TensorImpl*, Owner> owner;
  const auto compare = [&](const Layer& layer, const char* what, const NamedTensors& named) {
    for (const auto& [name, tensor] : named) {
      const auto [first, is_new] =
          owner.emplace(tensor.unsafeGetTensorImpl(), Owner{&layer, layer.name + "." + name});
      // The same module twice is reported as such. Tying within one layer is allowed.
      if (is_new || first->second.layer->module.identity() == layer.module.identity()) continue;
      mistakes.push_back(text("layers ", quoted(first->second.layer->name), " and ",
                              quoted(layer.name), " share a ", what, ": ", first->second.name,
                              " is ", layer.name, ".", name));
    }
  };
  for (const Layer& layer : layers) {
    if (!layer.module.made()) continue;
    compare(layer, "parameter", layer.named_parameters());
    compare(layer, "buffer", layer.named_buffers());
  }
}

class EdgeCheck {
 public:
  explicit EdgeCheck(const Graph& graph)
      : graph_(graph), end_(static_cast<int>(graph.layers.size())) {}

  Mistakes run() {
    for (const Edge& edge : graph_.edges) check_ends(edge);
    const bool in_order =
        std::is_sorted(graph_.edges.begin(), graph_.edges.end(), [](const Edge& a, const Edge& b) {
          return std::pair(a.to_layer, a.to_argument) < std::pair(b.to_layer, b.to_argument);
        });
    if (!in_order) mistakes_.emplace_back("the edges are not ordered by (to_layer, to_argument)");
    for (int layer = 0; layer <= end_; ++layer) check_arguments(layer);
    return std::move(mistakes_);
  }

 private:
  std::string name(int layer) const {
    if (layer == model_input) return "the model's input";
    if (layer == end_) return "the model's output";
    return "layer " + quoted(graph_.layers[static_cast<std::size_t>(layer)].name);
  }

  void check_ends(const Edge& edge) {
    if (edge.from_layer < model_input || edge.from_layer >= end_ || edge.to_layer < 0 ||
        edge.to_layer > end_) {
      mistakes_.push_back(text("an edge goes from layer ", edge.from_layer, " to layer ",
                               edge.to_layer, ", but the model has ", end_));
      return;
    }
    if (edge.from_layer >= edge.to_layer) {
      mistakes_.push_back(text(name(edge.to_layer), " takes a value of ", name(edge.from_layer),
                               ", which runs only later"));
    }
    const int outputs = edge.from_layer == model_input
                            ? graph_.inputs
                            : graph_.layers[static_cast<std::size_t>(edge.from_layer)].outputs;
    if (edge.from_output < 0 || (outputs >= 0 && edge.from_output >= outputs)) {
      mistakes_.push_back(text(name(edge.to_layer), " takes output ", edge.from_output, " of ",
                               name(edge.from_layer), ", which has only ", outputs));
    }
  }

  void check_arguments(int layer) {
    std::map<int, int> values;  // argument -> number of edges that lead to it
    for (const Edge& edge : graph_.edges) {
      if (edge.to_layer == layer) ++values[edge.to_argument];
    }
    const bool is_end = layer == end_;
    const Layer* which = is_end ? nullptr : &graph_.layers[static_cast<std::size_t>(layer)];
    const int most = is_end ? graph_.outputs : which->arguments;
    const int least = is_end ? graph_.outputs : which->required_arguments;
    const int given = static_cast<int>(values.size());
    for (const auto& [argument, count] : values) {
      if (count > 1)
        mistakes_.push_back(text(name(layer), " gets ", count, " values for argument ", argument));
    }
    const bool without_gap =
        given == 0 || (values.begin()->first == 0 && values.rbegin()->first == given - 1);
    if (!without_gap && given <= most) {
      mistakes_.push_back(text(name(layer), " has a gap between its arguments"));
    } else if (given < least) {
      mistakes_.push_back(
          text(name(layer), " takes ", least, " value(s) but gets ", given,
               is_end ? "" : ": argument " + std::to_string(given) + " has no value"));
    } else if (given > most) {
      mistakes_.push_back(text(name(layer), " takes at most ", most, " value(s) but gets ", given));
    }
  }

  const Graph& graph_;
  const int end_;
  Mistakes mistakes_;
};

}  // namespace

Mistakes layer_mistakes(const std::vector<Layer>& layers) {
  Mistakes mistakes;
  find_names_used_twice(layers, mistakes);
  for (const Layer& layer : layers) {
    if (!layer.forward)
      mistakes.push_back(text("layer ", quoted(layer.name), " has no function to call"));
  }
  find_modules_used_twice(layers, mistakes);
  find_shared_parameters(layers, mistakes);
  return mistakes;
}

Mistakes edge_mistakes(const Graph& graph) { return EdgeCheck(graph).run(); }

Mistakes wiring_mistakes(const Graph& graph) {
  Mistakes mistakes = layer_mistakes(graph.layers);
  for (std::string& mistake : edge_mistakes(graph)) mistakes.push_back(std::move(mistake));
  return mistakes;
}

void throw_mistakes(const Mistakes& mistakes) {
  if (mistakes.empty()) return;
  std::string message = mistakes.size() == 1
                            ? "the model's wiring has a mistake:"
                            : text("the model's wiring has ", mistakes.size(), " mistakes:");
  for (const std::string& mistake : mistakes) message += "\n  - " + mistake;
  throw UsageError(message);
}

}  // namespace trestle::nn
