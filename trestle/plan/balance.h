#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/plan/layer_profile.h"
#include "trestle/schedule/lower.h"

// Assigns layers to stages. The result is always the exact optimum, by dynamic programming.
namespace trestle::plan {

// The number of layers of each of `stages` stages, in order, such that the most expensive stage is
// as cheap as possible. Takes O(stages x layers^2). Among equal optima the first stage takes the
// most layers possible, then the second, and so on. `costs` holds one cost for each layer, in any
// unit, each >= 0. `together` holds pairs of layer indices; the layers from the first to the last
// of a pair stay in one stage. Throws UsageError if there are fewer layers or possible cuts than
// stages need, if stages < 1, if a pair names a layer that does not exist, or if a cost is negative
// or NaN.
//
//   balance({1, 2, 3, 4, 5, 6}, 2);  // {4, 2}
std::vector<int> balance(const std::vector<double>& costs, int stages,
                         const std::vector<std::pair<int, int>>& together = {});

// Balances forward plus backward time. Throws what balance() and check(profile) throw, as the
// functions below do.
std::vector<int> balance_by_time(const LayerProfile& profile, int stages);

// The settings on which a stage's memory depends besides its layers.
struct SizeOptions {
  int optimizer_states = 0;  // state tensors of the optimizer for each parameter: Adam 2, SGD 0
  int micro_batches = 1;     // in flight at once
  schedule::Recompute recompute = schedule::Recompute::Never;
  // The outputs of an additive loss, their gradients and the loss's other tensors: the peak in
  // bytes for each byte of the model's outputs. 0 = unknown.
  double loss_memory = 0;
  // [layer] the optimizer's temporary memory while it steps one of the layer's parameters, when
  // all activations are freed. Empty = none.
  std::vector<Bytes> step_transients = {};
};

// Bytes of a stage with the layers [first, last): its parameters, gradients, optimizer states and
// buffers; its copies of tied parameters and their gradients; the activations of each micro-batch
// in flight (with recomputation the stage's inputs, skips included); and the largest transient
// need, the loss's included. If the optimizer's step needs more than the
// activations and that, its need is counted instead. Messages in flight on the sender's side are
// not included: they depend on the whole cut, see Pipeline::profile() and predict(). Throws
// UsageError for a range outside the profile and for invalid options.
Bytes stage_bytes(const LayerProfile& profile, int first, int last, const SizeOptions& options);

// Makes the largest stage as small as possible. Throws as balance().
std::vector<int> balance_by_size(const LayerProfile& profile, int stages,
                                 const SizeOptions& options = {});

// The fastest cut in which each stage fits its budget. `budgets` holds one entry for each stage; 0
// = no limit. Stages with the same number in `device_of_stage` share a device and its budget, which
// is that of the first of them; empty = each stage has its own. Throws as balance(). If no cut
// fits, it throws UsageError with the sizes of the smallest cut.
//
//   balance_within(profile, {512_MiB, 512_MiB, 512_MiB}, {}, {0, 1, 0});  // two devices
std::vector<int> balance_within(const LayerProfile& profile, const std::vector<Bytes>& budgets,
                                const SizeOptions& options = {},
                                const std::vector<int>& device_of_stage = {});

}  // namespace trestle::plan
