#include "trestle/parallel/checkpoint_layers.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/recompute/checkpoint.h"

namespace trestle {
namespace {

constexpr const char* all_layers = "layers";

bool is_named(const nn::Layer& layer, const std::string& name) {
  if (name == all_layers) return static_cast<bool>(layer.module);
  return layer.name == name || layer.name.starts_with(name + ".");
}

// A layer without parameters, such as an activation, keeps no more than its arguments. Whether it
// has some is known when its rank has created it.
enum class Scope { EachLayer, WithParameters };

void recompute_alone(nn::Layer& layer, Scope scope) {
  layer.forward = [module = layer.module, scope,
                   inner = std::move(layer.forward)](const nn::Values& arguments) {
    nn::CheckpointOptions options;
    if (module) options.modules.push_back(module.make());
    if (scope == Scope::WithParameters && module.make()->parameters().empty())
      return inner(arguments);
    return nn::checkpoint(options, inner, arguments);
  };
}

void check_names(const nn::Graph& graph, const std::vector<std::string>& names) {
  std::vector<std::string> known = {all_layers};
  for (const nn::Layer& layer : graph.layers) known.push_back(layer.name);
  for (const std::string& name : names)
    if (std::none_of(graph.layers.begin(), graph.layers.end(),
                     [&](const nn::Layer& layer) { return is_named(layer, name); }))
      throw_unknown("layer", name, known);
}

}  // namespace

std::function<void(nn::Graph&)> checkpoint_layers(std::vector<std::string> names) {
  return [names = std::move(names)](nn::Graph& graph) {
    check_names(graph, names);
    for (nn::Layer& layer : graph.layers) {
      const auto named = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
        return is_named(layer, name);
      });
      if (named == names.end()) continue;
      recompute_alone(layer, *named == all_layers ? Scope::WithParameters : Scope::EachLayer);
    }
  };
}

}  // namespace trestle
