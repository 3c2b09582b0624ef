#include "trestle/gradient_norm/slice_norm.h"

#include "trestle/gradient_norm/sharded_norm.h"

namespace trestle::gradient_norm {

double norm_over_slices(const NamedTensors& parameters, const SlicedParameters& slices,
                        const std::vector<comm::Group>& shards, double p) {
  std::vector<at::Tensor> counted, copies;
  for (const auto& [name, parameter] : parameters) {
    const bool counts = !slices.any() || slices.group.rank() == 0 || slices.names.contains(name);
    (counts ? counted : copies).push_back(parameter);
  }
  std::vector<comm::Group> groups = shards;
  groups.push_back(slices.group);
  return norm_over_ranks(counted, groups, p, copies);
}

}  // namespace trestle::gradient_norm
