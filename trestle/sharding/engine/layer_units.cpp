#include "trestle/sharding/engine/layer_units.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "trestle/sharding/engine/shard_engine.h"
#include "trestle/sharding/unshard/unit_choice.h"

namespace trestle::sharding {
namespace {

using TiedName = std::pair<int, std::string>;  // (layer, its parameter's name)

class LayerUnits {
 public:
  LayerUnits(const LayerRange& layers, ShardEngine& engine)
      : layers_(layers),
        graph_(layers.graph),
        engine_(engine),
        choice_(engine.options().units.names),
        unit_of_layer_(graph_.layers.size()) {
    for (nn::ParameterTie tie : graph_.ties) {
      std::tie(tie.owner, tie.owner_parameter) = nn::owner_of(graph_, tie);
      if (!contains(tie.owner))
        continue;  // a pipeline's stage has a copy, which is not a parameter
      tied_.insert({tie.owner, tie.owner_parameter});
      if (contains(tie.layer)) ties_.push_back(tie);
    }
  }

  std::vector<LayerUnit> make() {
    for (std::size_t layer = layers_.first; layer < layers_.last; ++layer)
      if (graph_.layers[layer].module) add_layer(layer);
    close_unit();
    for (std::size_t layer = 0; layer < graph_.layers.size(); ++layer)
      if (!contains(static_cast<int>(layer))) choice_.note_elsewhere(graph_.layers[layer].name);
    choice_.check();
    add_tied_groups();
    std::vector<LayerUnit> result;
    for (std::size_t layer = layers_.first; layer < layers_.last; ++layer)
      if (unit_of_layer_[layer])
        result.push_back({.layer = layer, .unit = *unit_of_layer_[layer], .after = after(layer)});
    return result;
  }

 private:
  bool contains(int layer) const {
    const auto number = static_cast<std::size_t>(layer);
    return number >= layers_.first && number < layers_.last;
  }

  void add_layer(std::size_t number) {
    const nn::Layer& layer = graph_.layers[number];
    const auto module = layer.module.make();
    if (engine_.options().device) layer.to(*engine_.options().device);
    engine_.precision().add_module(*module, layer.name);
    close_before(layer.name, *module);
    const NamedTensors own = each_once(layer.named_parameters());
    const bool takes_tied = std::any_of(ties_.begin(), ties_.end(), [&](const auto& tie) {
      return tie.layer == static_cast<int>(number);
    });
    if (own.empty() && !takes_tied) return;
    for (const auto& [name, tensor] : own) {
      const bool is_tied = tied_.contains({static_cast<int>(number), name});
      (is_tied ? shared_ : own_).emplace_back(layer.name + "." + name, tensor);
      bytes_ += static_cast<Bytes>(tensor.nbytes());
    }
    members_.push_back(number);
    if (choice_.empty() && bytes_ >= engine_.options().units.bytes) close_unit();
  }

  // A chosen layer begins a unit, unless it and the layer before match one name, as "blocks" for
  // "blocks.0" and "blocks.1".
  void close_before(const std::string& name, const torch::nn::Module& module) {
    const auto match = choice_.match(name, module);
    if (match && !(match->by_prefix && open_choice_ == match->number)) close_unit();
    open_choice_ = match && match->by_prefix ? std::optional(match->number) : std::nullopt;
  }

  std::string unit_name() const {
    const std::string& first = graph_.layers[members_.front()].name;
    return members_.size() == 1 ? first : first + " to " + graph_.layers[members_.back()].name;
  }

  void close_unit() {
    if (members_.empty()) return;
    NamedTensors all = own_;
    all.insert(all.end(), shared_.begin(), shared_.end());
    engine_.start_from_rank_0(all, {});
    GroupBuilder& builder = engine_.builder();
    builder.add_unit(unit_name(), own_);
    for (const auto& one : shared_) {
      const std::size_t group = builder.add_shared_group(one);
      builder.units().back().groups.push_back(group);
      note_tied_group(one.first, group);
    }
    for (const std::size_t layer : members_) unit_of_layer_[layer] = builder.units().size() - 1;
    own_.clear(), shared_.clear(), members_.clear();
    bytes_ = 0;
  }

  void note_tied_group(const std::string& full_name, std::size_t group) {
    for (const TiedName& tied : tied_) {
      const auto layer = static_cast<std::size_t>(tied.first);
      const bool is_member = std::find(members_.begin(), members_.end(), layer) != members_.end();
      if (is_member && graph_.layers[layer].name + "." + tied.second == full_name)
        group_of_tied_[tied] = group;
    }
  }

  // A unit that uses another layer's parameter gathers that parameter's group too.
  void add_tied_groups() {
    for (const auto& tie : ties_) {
      const std::size_t unit = *unit_of_layer_[static_cast<std::size_t>(tie.layer)];
      auto& groups = engine_.builder().units().at(unit).groups;
      const std::size_t group = group_of_tied_.at({tie.owner, tie.owner_parameter});
      if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
    }
  }

  ParameterUnsharder::After after(std::size_t layer) const {
    for (std::size_t later = layer + 1; later < layers_.last; ++later)
      if (unit_of_layer_[later] == unit_of_layer_[layer]) return ParameterUnsharder::After::Keep;
    return ParameterUnsharder::After::Release;
  }

  LayerRange layers_;
  const nn::Graph& graph_;
  ShardEngine& engine_;
  UnitChoice choice_;
  std::vector<nn::ParameterTie> ties_;  // of these layers, to their owners at the end of the chain
  std::set<TiedName> tied_;             // parameters that other layers use too
  std::map<TiedName, std::size_t> group_of_tied_;
  std::vector<std::optional<std::size_t>> unit_of_layer_;
  // The unit that is open.
  NamedTensors own_, shared_;
  std::vector<std::size_t> members_;  // its layers
  Bytes bytes_ = 0;
  std::optional<std::size_t> open_choice_;  // the prefix that the layer before matched
};

}  // namespace

std::vector<LayerUnit> make_layer_units(const LayerRange& layers, ShardEngine& engine) {
  return LayerUnits(layers, engine).make();
}

std::vector<std::size_t> order_of(const std::vector<LayerUnit>& layers) {
  std::vector<std::size_t> units;
  for (const LayerUnit& layer : layers) units.push_back(layer.unit);
  return units;
}

void gather_around_layers(nn::Graph& graph, const std::vector<LayerUnit>& layers,
                          ShardEngine& engine) {
  for (const LayerUnit& layer : layers) {
    auto& forward = graph.layers[layer.layer].forward;
    forward = [&engine, layer, inner = std::move(forward)](const nn::Values& arguments) {
      nn::Values inputs = arguments;
      const auto call = engine.unsharder()->begin(layer.unit, inputs);
      nn::Values outputs = inner(inputs);
      engine.unsharder()->end(call, outputs, layer.after);
      return outputs;
    };
  }
}

}  // namespace trestle::sharding
