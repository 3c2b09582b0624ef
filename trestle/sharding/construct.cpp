// How a Sharded is put together: its ranks, its groups of parameters, its units.
#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/named_tensors.h"
#include "trestle/sharding/buckets.h"
#include "trestle/sharding/precision.h"
#include "trestle/sharding/replicas.h"
#include "trestle/sharding/reproducible.h"
#include "trestle/sharding/sharded_impl.h"
#include "trestle/sharding/unit_choice.h"

namespace trestle {
namespace {

using sharding::FlatGroup;

NamedTensors each_once(const NamedTensors& named) {
  std::set<const void*> seen;
  NamedTensors once;
  for (const auto& [name, tensor] : named)
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) once.emplace_back(name, tensor);
  return once;
}

template <class Items>
NamedTensors named_parameters_of(const Items& items) {
  NamedTensors tensors;
  for (const auto& item : items) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

}  // namespace

Sharded::Impl::Impl(const nn::Layers& model, const DeviceMesh& mesh, const ShardOptions& given)
    : options(given), ranks_(sharding::rank_groups(mesh, given)), graph_(model.graph()) {
  check_options();
  if (options.level == ShardLevel::Parameters) {
    make_layer_units();
    buffers_ = each_once(model.named_buffers());
    parameters_ = each_once(model.named_parameters());
  } else {
    if (options.device)
      for (const auto& layer : graph_.layers) layer.to(*options.device);
    for (const auto& layer : graph_.layers)
      if (layer.module) note_kept(*layer.module.make(), layer.name);
    parameters_ = each_once(model.named_parameters());
    buffers_ = each_once(model.named_buffers());
  }
  finish_construction();
  cast_inputs_of_layers();
}

Sharded::Impl::Impl(std::shared_ptr<torch::nn::Module> model, const DeviceMesh& mesh,
                    const ShardOptions& given)
    : options(given), ranks_(sharding::rank_groups(mesh, given)), module_(std::move(model)) {
  if (!module_) throw UsageError("there is no model");
  check_options();
  if (options.device) module_->to(*options.device);
  parameters_ = each_once(named_parameters_of(module_->named_parameters()));
  buffers_ = each_once(named_parameters_of(module_->named_buffers()));
  note_kept(*module_, "");
  if (options.level == ShardLevel::Parameters) make_module_units();
  finish_construction();
  hook_modules();
}

// One unit, which its owner gathers and lets go, in buckets.
Sharded::Impl::Impl(NamedTensors parameters, NamedTensors buffers,
                    const sharding::RankGroups& ranks, const ShardOptions& given)
    : options(given),
      ranks_(ranks),
      parameters_(each_once(parameters)),
      buffers_(each_once(buffers)) {
  check_options();
  if (!options.units.empty())
    throw UsageError("ShardOptions::units of parameters that others use, which are one unit");
  if (options.level == ShardLevel::Parameters) {
    start_from_rank_0(parameters_);
    make_unit("all", parameters_);
  }
  finish_construction();
  if (options.reproducible.pieces > 0)
    throw UsageError("ShardOptions::reproducible for a pipeline's stage, which has pieces already",
                     {.hint = "Leave it out: micro-batches are added up in their own order."});
  reducer->sum_as_they_are();
  reducer->wait_in_finish();
  reducer->set_sync(false);
}

void Sharded::Impl::finish_construction() {
  check_kept_names();
  for (const auto& named : parameters_)
    if (named.second.requires_grad()) trained_.push_back(named);
  if (trained_.empty() && (module_ || !graph_.layers.empty()))
    throw UsageError("the model has no parameter that is trained",
                     {.hint = "There is nothing to reduce over ranks."});
  if (options.reproducible.pieces > 0)
    for (const auto& [name, tensor] : trained_)
      sharding::check_reproducible_device(tensor.device());
  if (options.level == ShardLevel::Parameters) {
    start_from_rank_0({});
  } else {
    start_from_rank_0(parameters_);
    std::vector<std::size_t> order(trained_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
    make_buckets(order);
    make_frozen_groups();
    if (options.level != ShardLevel::None)
      for (const auto& group : groups_) group->flatten();
  }
  stepped_ = options.level == ShardLevel::None ? trained_ : shards_of_trained();
  watch();
}

NamedTensors Sharded::Impl::shards_of_trained() const {
  std::map<const void*, at::Tensor> shard_of;
  for (const auto& group : groups_)
    for (std::size_t i = 0; i < group->size(); ++i)
      shard_of[group->parameter(i).unsafeGetTensorImpl()] = group->shards()[i];
  NamedTensors shards;
  for (const auto& [name, tensor] : trained_)
    shards.emplace_back(name, shard_of.at(tensor.unsafeGetTensorImpl()));
  return shards;
}

void Sharded::Impl::check_options() const {
  sharding::check_reproducible(options, ranks_);
  sharding::check_dtypes(options.precision);
  if (!options.units.empty() && options.unit > 0)
    throw UsageError("units by name (ShardOptions::units) and by size (::unit)",
                     {.hint = "Give one of them."});
  if (options.level == ShardLevel::None && options.precision.parameters) {
    throw UsageError(
        "at level none parameters have no master copy in another dtype",
        {.hint = "Take a level that divides, or autocast (trestle/precision/autocast.h)."});
  }
  if (options.level == ShardLevel::None && options.shards_on_cpu)
    throw UsageError("at level none there are no shards to keep on the CPU");
  if (options.reproducible.pieces > 0 && options.hook.make)
    throw UsageError(text("the communication hook '", options.hook.name,
                          "' with ShardOptions::reproducible, which has its own order of sums"),
                     {.hint = "Leave one of them out."});
  if (options.level != ShardLevel::None && options.hook.make) {
    throw UsageError(
        text("the communication hook '", options.hook.name,
             "' averages whole gradients, and level ", to_string(options.level),
             " reduces them to each rank's piece"),
        {.hint = "Take level None (trestle::ddp()), or leave the hook out: precision.reduce = "
                 "at::kBFloat16 sends half as much at every level."});
  }
  for (const auto& type :
       {options.precision.parameters, options.precision.reduce, options.precision.output})
    if (type && !at::isFloatingType(*type))
      throw UsageError(text("ShardPrecision with ", toString(*type)),
                       {.hint = "It is a floating-point type: at::kBFloat16, at::kHalf, ..."});
}

void Sharded::Impl::start_from_rank_0(const NamedTensors& parameters) {
  sharding::check_can_be_sharded(parameters, buffers_, options.level);
  sharding::check_same_model(ranks_.all, parameters, buffers_);
  if (!options.broadcast_at_start) return;
  NamedTensors all = parameters;
  all.insert(all.end(), buffers_.begin(), buffers_.end());
  sharding::broadcast(ranks_.all, without_names(all));
}

// Levels below Parameters: the trained parameters in buckets, in this order.
void Sharded::Impl::make_buckets(const std::vector<std::size_t>& order) {
  std::vector<sharding::BucketItem> items;
  for (const auto& [name, tensor] : trained_)
    items.push_back({.bytes = static_cast<Bytes>(tensor.nbytes()),
                     .kind = 2 * sharding::kind_of(tensor) + (is_kept(tensor) ? 1 : 0)});
  groups_.clear();
  for (const auto& bucket :
       sharding::assign_buckets(items, order, options.first_bucket, options.bucket)) {
    NamedTensors members;
    for (const std::size_t i : bucket) members.push_back(trained_[i]);
    groups_.push_back(make_group(std::move(members), true));
  }
}

void Sharded::Impl::watch() {
  // At level Parameters the last unit's gradients come first.
  if (options.level == ShardLevel::Parameters) {
    std::reverse(groups_.begin(), groups_.end());
    for (auto& unit : units_)
      for (auto& group : unit.groups) group = groups_.size() - 1 - group;
  }
  reducer = std::make_shared<sharding::GradientReducer>(groups_, ranks_, options);
  if (options.hook.make) reducer->set_hook(options.hook.make(ranks_.all));
  reducer->watch();
  if (options.level != ShardLevel::Parameters) return;
  gatherer_ = std::make_shared<sharding::UnitGatherer>(groups_, units_, ranks_, reducer, options);
  reducer->set_observer(gatherer_.get());
  if (module_ && units_.size() == 1) unit_order_ = {0};
  gatherer_->expect(unit_order_);
}

// Level None: after the first step the buckets follow the order in which rank 0 saw the gradients come.
void Sharded::Impl::rebuild_buckets() {
  if (options.level != ShardLevel::None || rebuilt_ || reducer->steps() == 0) return;
  if (reducer->has_unreduced()) return;  // what the buckets may keep
  rebuilt_ = true;
  std::vector<std::size_t> order;
  std::vector<bool> known(trained_.size(), false);
  const auto add = [&](std::size_t i) {
    if (i < known.size() && !known[i]) order.push_back(i);
    if (i < known.size()) known[i] = true;
  };
  std::string words;
  for (const auto& [group, index] : reducer->observed_order())
    for (std::size_t i = 0; i < trained_.size(); ++i)
      if (trained_[i].second.is_same(groups_[group]->parameter(index))) words += text(i, " ");
  for (const std::string& word : split(ranks_.all.broadcast_bytes(words, 0), ' '))
    if (!word.empty()) add(std::stoul(word));
  for (std::size_t i = trained_.size(); i > 0; --i) add(i - 1);
  make_buckets(order);
  auto fresh = std::make_shared<sharding::GradientReducer>(groups_, ranks_, options);
  fresh->go_on_from(*reducer);
  reducer = fresh;
  reducer->watch();
  hand_out_recorder();
}

// Level Parameters: one unit's parameters, as they are made, go into flat groups and are let go.
void Sharded::Impl::make_unit(const std::string& name, const NamedTensors& parameters) {
  std::vector<std::pair<int, NamedTensors>> kinds;
  for (const auto& member : parameters) {
    const int kind = 4 * sharding::kind_of(member.second) +
                     (member.second.requires_grad() ? 2 : 0) + (is_kept(member.second) ? 1 : 0);
    auto found = std::find_if(kinds.begin(), kinds.end(),
                              [&](const auto& known) { return known.first == kind; });
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {kind, {}});
    found->second.push_back(member);
  }
  sharding::UnitGatherer::Unit unit{.name = name, .groups = {}};
  for (auto& [kind, members] : kinds) {
    unit.groups.push_back(groups_.size());
    const bool trained = members.at(0).second.requires_grad();
    auto group = make_group(std::move(members), trained);
    group->flatten();
    group->release();
    groups_.push_back(std::move(group));
  }
  units_.push_back(std::move(unit));
}

std::size_t Sharded::Impl::make_shared_group(const NamedTensors::value_type& parameter) {
  make_unit("", {parameter});
  const std::size_t group = units_.back().groups.at(0);
  units_.pop_back();
  return group;
}

void Sharded::Impl::make_layer_units() {
  std::set<std::pair<int, std::string>> tied;  // parameters that other layers share
  for (const auto& tie : graph_.ties) tied.insert({tie.owner, tie.owner_parameter});
  const auto unit_name = [&](std::size_t first, std::size_t last) {
    return first == last ? graph_.layers[first].name
                         : graph_.layers[first].name + " to " + graph_.layers[last].name;
  };
  std::map<std::pair<int, std::string>, std::size_t> group_of_tied;
  std::vector<std::optional<std::size_t>> unit_of_layer(graph_.layers.size());
  NamedTensors pending, shared;
  std::vector<std::size_t> members;
  Bytes bytes = 0;
  sharding::UnitChoice choice(options.units);
  std::optional<std::size_t>
      part_of;  // what is wanted, of which the layer before is one of several
  const auto close = [&] {
    if (members.empty()) return;
    NamedTensors all = pending;
    all.insert(all.end(), shared.begin(), shared.end());
    start_from_rank_0(all);
    make_unit(unit_name(members.front(), members.back()), pending);
    for (const auto& one : shared) {  // a group of its own, which other units name too
      const std::size_t group = make_shared_group(one);
      units_.back().groups.push_back(group);
      for (const std::size_t layer : members)
        for (const auto& key : tied)
          if (key.first == static_cast<int>(layer) &&
              graph_.layers[layer].name + "." + key.second == one.first)
            group_of_tied[key] = group;
    }
    for (const std::size_t layer : members) unit_of_layer[layer] = units_.size() - 1;
    pending.clear(), shared.clear(), members.clear();
    bytes = 0;
  };
  for (std::size_t layer = 0; layer < graph_.layers.size(); ++layer) {
    if (!graph_.layers[layer].module) continue;
    graph_.layers[layer].module.make();
    if (options.device) graph_.layers[layer].to(*options.device);
    note_kept(*graph_.layers[layer].module.make(), graph_.layers[layer].name);
    const auto match = choice.match(graph_.layers[layer].name, *graph_.layers[layer].module.make());
    if (match && !(match->by_prefix && part_of == match->number)) close();
    part_of = match && match->by_prefix ? std::optional(match->number) : std::nullopt;
    const auto own = each_once(graph_.layers[layer].named_parameters());
    const bool takes_tied =
        std::any_of(graph_.ties.begin(), graph_.ties.end(),
                    [&](const auto& tie) { return tie.layer == static_cast<int>(layer); });
    if (own.empty() && !takes_tied) continue;
    for (const auto& [name, tensor] : own) {
      const NamedTensors::value_type full(graph_.layers[layer].name + "." + name, tensor);
      (tied.contains({static_cast<int>(layer), name}) ? shared : pending).push_back(full);
      bytes += static_cast<Bytes>(tensor.nbytes());
    }
    members.push_back(layer);
    if (choice.empty() && bytes >= options.unit) close();
  }
  close();
  choice.check();
  for (const auto& tie : graph_.ties) {
    auto& groups = units_.at(*unit_of_layer[static_cast<std::size_t>(tie.layer)]).groups;
    const std::size_t group = group_of_tied.at({tie.owner, tie.owner_parameter});
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  hook_layers(unit_of_layer);
}

// The graph's own copies of the layers' functions: the model itself stays as it is.
void Sharded::Impl::hook_layers(const std::vector<std::optional<std::size_t>>& unit_of_layer) {
  for (std::size_t layer = 0; layer < graph_.layers.size(); ++layer) {
    const auto unit = unit_of_layer[layer];
    if (!unit) continue;
    unit_order_.push_back(*unit);
    bool last = true;
    for (std::size_t later = layer + 1; later < unit_of_layer.size(); ++later)
      last &= unit_of_layer[later] != unit;
    auto& forward = graph_.layers[layer].forward;
    forward = [this, unit = *unit, last, inner = std::move(forward)](const nn::Values& arguments) {
      nn::Values inputs = arguments;
      const auto call = gatherer_->begin(unit, inputs);
      nn::Values outputs = inner(inputs);
      gatherer_->end(call, outputs, !last);
      return outputs;
    };
  }
}

std::string Sharded::Impl::units_in_words() const {
  if (hooked_.empty())
    return " (no module in it is a trestle::Hooked: its parameters are all there while it runs)";
  constexpr std::size_t most = 12;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(units_.size(), most); ++i) names.push_back(units_[i].name);
  if (units_.size() > most) names.push_back(text(units_.size() - most, " more"));
  return text(" (", join(names, ", "), ")");
}

std::string Sharded::Impl::description() const {
  std::int64_t count = 0;
  for (const auto& [name, tensor] : parameters_) count += tensor.numel();
  const auto groups = static_cast<std::int64_t>(groups_.size());
  const auto units = static_cast<std::int64_t>(units_.size());
  const bool in_units = options.level == ShardLevel::Parameters;
  std::string words = text("level ", to_string(options.level), " on the mesh ", ranks_.mesh, ": ",
                           counted(ranks_.all.size(), "rank"), ", ", counted(count, "parameter"),
                           " in ", counted(groups, in_units ? "flat group" : "bucket"));
  if (in_units) {
    words += text(" of ", counted(units, "unit"));
    if (module_) words += units_in_words();
  }
  return words + "\n";
}

}  // namespace trestle
