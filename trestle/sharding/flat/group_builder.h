#pragma once

#include <string>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/sharding/flat/flat_parameter_group.h"
#include "trestle/sharding/flat/mixed_precision.h"
#include "trestle/sharding/flat/unit.h"
#include "trestle/sharding/options/options.h"
#include "trestle/sharding/options/rank_groups.h"

namespace trestle::sharding {

// Divides a model's parameters into flat groups. A group holds parameters of one dtype on one
// device, all of them trained or all frozen.
class GroupBuilder {
 public:
  // All three outlive the builder.
  GroupBuilder(const ShardOptions& options, const RankGroups& ranks,
               const MixedPrecision& precision)
      : options_(options), ranks_(ranks), precision_(precision) {}

  // Level Parameters: flattens a unit's parameters into new groups and releases them.
  void add_unit(const std::string& name, const NamedTensors& parameters);
  // The same for one parameter that several units use. Returns the number of its group.
  std::size_t add_shared_group(const NamedTensors::value_type& parameter);
  // The groups in the order in which a backward completes them: the last unit first.
  void reverse();
  const FlatParameterGroups& groups() const { return groups_; }
  std::vector<Unit>& units() { return units_; }

  // The levels below Parameters: buckets of the trained parameters, in this order.
  FlatParameterGroups make_buckets(const NamedTensors& trained,
                                   const std::vector<std::size_t>& order) const;
  // Groups of frozen parameters that are computed in another dtype.
  FlatParameterGroups make_frozen_groups(const NamedTensors& parameters) const;

 private:
  using Use = FlatParameterGroup::Use;
  std::shared_ptr<FlatParameterGroup> make_group(NamedTensors members, Use use) const;

  const ShardOptions& options_;
  const RankGroups& ranks_;
  const MixedPrecision& precision_;
  FlatParameterGroups groups_;
  std::vector<Unit> units_;
};

}  // namespace trestle::sharding
