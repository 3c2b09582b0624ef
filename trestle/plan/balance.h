#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/plan/layer_profile.h"
#include "trestle/schedule/lower.h"

// Dividing layers among stages: always the exact optimum, by dynamic programming.
namespace trestle::plan {

// The number of layers for each of `stages` stages, in order, such that the most expensive stage is
// as cheap as it can be, in O(stages x layers^2). Among equal optima the first stage takes as many
// layers as it can, then the second, ... `costs` are the layers' costs, in any unit, each >= 0. The
// layers `first` to `last` (counted) of each pair in `together` go into one stage. Throws UsageError
// if there are fewer layers than stages, or fewer places to cut than needed, stages < 1, a pair that
// names a layer which is not there, or a cost that is negative or not a number.
//
//   balance({1, 2, 3, 4, 5, 6}, 2);  // {4, 2}
std::vector<int> balance(const std::vector<double>& costs, int stages,
                         const std::vector<std::pair<int, int>>& together = {});

// By forward and backward time. Throws as balance() and check(profile), as the others do.
std::vector<int> balance_by_time(const LayerProfile& profile, int stages);

// What decides how much memory a stage needs beside its layers.
struct SizeOptions {
  int optimizer_states = 0;  // tensors that an optimizer keeps for each parameter: Adam 2, SGD 0
  int micro_batches = 1;     // in flight at once, each with its activations
  schedule::Recompute recompute = schedule::Recompute::Never;
};

// Bytes of a stage that has the layers [first, last): parameters, their gradients and optimizer
// states, buffers; for each micro-batch in flight what the graph keeps, or, where it is recomputed,
// the stage's inputs, skips among them; and the largest transient need. The sender's share of what is
// under way is not in it: Pipeline::profile() and predict() know that of a cut. Throws
// UsageError for a range that is not one of the profile's, and for options that cannot be.
Bytes stage_bytes(const LayerProfile& profile, int first, int last, const SizeOptions& options);

// The largest stage as small as it can be. Throws as balance().
std::vector<int> balance_by_size(const LayerProfile& profile, int stages,
                                 const SizeOptions& options = {});

// The fastest cut in which each stage's bytes fit its budget (0 = no limit), one budget for each
// stage. Throws as balance(), and UsageError, with the best that can be had, where nothing fits.
std::vector<int> balance_within(const LayerProfile& profile, const std::vector<Bytes>& budgets,
                                const SizeOptions& options = {});

}  // namespace trestle::plan
