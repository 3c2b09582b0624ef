#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/sharding/flat/flat_parameter_group.h"
#include "trestle/sharding/options/options.h"
#include "trestle/sharding/reduce/backward_pass.h"
#include "trestle/sharding/reduce/reducer_stats.h"

namespace trestle::sharding {

// Finds, for ShardOptions::unused_parameters, which trained parameters got no gradient in a
// backward pass. In mode Static it remembers the first step and compares each later step with it.
class UnusedParameterTracker {
 public:
  UnusedParameterTracker(UnusedParameters mode, comm::Group ranks)
      : mode_(mode), ranks_(std::move(ranks)) {}

  // Whether the first step showed, in mode Static, that this rank's backward gives the parameter no
  // gradient.
  bool is_unused(const at::Tensor& parameter) const;
  // Throws StateError if a parameter that is_unused() got a gradient.
  void check_gradient(const std::string& name, const at::Tensor& parameter) const;
  // Throws StateError that lists `names`, trained parameters without a gradient, in mode Refuse.
  void check_missing(const std::vector<std::string>& names) const;

  // used[group][parameter]: whether the reduced gradient counts. Mode Find asks all ranks in every
  // step, mode Static in the first one. Throws StateError where a step differs from the first one.
  std::vector<std::vector<bool>> used(const FlatParameterGroups& groups, const BackwardPass& pass,
                                      ReducerStats& stats);

 private:
  struct FirstUse {
    std::optional<int> gradients;  // on this rank; unknown where the rank had no samples
    bool on_any = false;           // some rank got a gradient
  };

  std::vector<std::vector<bool>> arrived_on_any(const FlatParameterGroups& groups,
                                                const BackwardPass& pass,
                                                ReducerStats& stats) const;
  void note_first_step(const FlatParameterGroup& group, const std::vector<bool>& on_any);
  std::vector<bool> used_in_group(const FlatParameterGroup& group,
                                  const BackwardPass::Arrivals& own) const;
  void note_counts(const FlatParameterGroup& group, const BackwardPass::Arrivals& own);
  void compare_with_first_step(const FlatParameterGroups& groups, const BackwardPass& pass) const;

  UnusedParameters mode_;
  comm::Group ranks_;
  std::map<const void*, FirstUse> first_step_;  // by parameter
};

}  // namespace trestle::sharding
