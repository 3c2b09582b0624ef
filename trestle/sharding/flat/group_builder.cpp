#include "trestle/sharding/flat/group_builder.h"

#include <algorithm>
#include <utility>

#include "trestle/sharding/flat/broadcast_tensors.h"
#include "trestle/sharding/flat/buckets.h"

namespace trestle::sharding {

std::shared_ptr<FlatParameterGroup> GroupBuilder::make_group(NamedTensors members, Use use) const {
  ShardOptions own = options_;
  if (precision_.keeps_dtype(members.at(0).second)) own.precision.parameters.reset();
  const bool shards = options_.level != ShardLevel::None;
  return std::make_shared<FlatParameterGroup>(std::move(members), use,
                                              shards ? ranks_.shard.size() : 1,
                                              shards ? ranks_.shard.rank() : 0, own);
}

void GroupBuilder::add_unit(const std::string& name, const NamedTensors& parameters) {
  std::vector<std::pair<int, NamedTensors>> kinds;
  for (const auto& member : parameters) {
    const int kind = 4 * kind_of(member.second) + (member.second.requires_grad() ? 2 : 0) +
                     (precision_.keeps_dtype(member.second) ? 1 : 0);
    auto found = std::find_if(kinds.begin(), kinds.end(),
                              [&](const auto& known) { return known.first == kind; });
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {kind, {}});
    found->second.push_back(member);
  }
  Unit unit{.name = name, .groups = {}};
  for (auto& [kind, members] : kinds) {
    unit.groups.push_back(groups_.size());
    const bool trained = members.at(0).second.requires_grad();
    auto group = make_group(std::move(members), trained ? Use::Trained : Use::Frozen);
    group->flatten();
    group->release();
    groups_.push_back(std::move(group));
  }
  units_.push_back(std::move(unit));
}

std::size_t GroupBuilder::add_shared_group(const NamedTensors::value_type& parameter) {
  add_unit("", {parameter});
  const std::size_t group = units_.back().groups.at(0);
  units_.pop_back();
  return group;
}

void GroupBuilder::reverse() {
  std::reverse(groups_.begin(), groups_.end());
  for (Unit& unit : units_)
    for (std::size_t& group : unit.groups) group = groups_.size() - 1 - group;
}

FlatParameterGroups GroupBuilder::make_buckets(const NamedTensors& trained,
                                               const std::vector<std::size_t>& order) const {
  std::vector<BucketItem> items;
  for (const auto& [name, tensor] : trained)
    items.push_back({.bytes = static_cast<Bytes>(tensor.nbytes()),
                     .kind = 2 * kind_of(tensor) + (precision_.keeps_dtype(tensor) ? 1 : 0)});
  FlatParameterGroups buckets;
  for (const auto& bucket :
       assign_buckets(items, order, options_.buckets.first, options_.buckets.size)) {
    NamedTensors members;
    for (const std::size_t i : bucket) members.push_back(trained[i]);
    buckets.push_back(make_group(std::move(members), Use::Trained));
  }
  return buckets;
}

FlatParameterGroups GroupBuilder::make_frozen_groups(const NamedTensors& parameters) const {
  if (!options_.precision.parameters) return {};
  std::vector<NamedTensors> kinds;
  for (const auto& member : parameters) {
    if (member.second.requires_grad() || precision_.keeps_dtype(member.second)) continue;
    const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const NamedTensors& known) {
      return known[0].second.options().type_equal(member.second.options()) &&
             known[0].second.device() == member.second.device();
    });
    if (found == kinds.end())
      kinds.push_back({member});
    else
      found->push_back(member);
  }
  FlatParameterGroups groups;
  for (NamedTensors& members : kinds) groups.push_back(make_group(std::move(members), Use::Frozen));
  return groups;
}

}  // namespace trestle::sharding
