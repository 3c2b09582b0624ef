#pragma once

#include <set>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/device/named_tensors.h"

// The norm of gradients of which some are slices on tensor ranks and the rest is whole on all of
// them: each element counts once.
namespace trestle::gradient_norm {

// The tensor ranks, and the parameters of which they hold slices. A group that is not valid():
// every parameter is whole.
struct SlicedParameters {
  comm::Group group = {};
  std::set<std::string> names = {};

  bool any() const { return group.valid() && group.size() > 1; }
};

// The p-norm of the gradients of `parameters` over the tensor ranks, and before over `shards`,
// which hold a shard each of the gradients. Whole gradients count on the first tensor rank. All
// ranks get the same bits, and NaN if one has a NaN. That holds for whole gradients too: a damaged
// copy on one tensor rank must stop the step on all of them.
double norm_over_slices(const NamedTensors& parameters, const SlicedParameters& slices,
                        const std::vector<comm::Group>& shards, double p);

}  // namespace trestle::gradient_norm
