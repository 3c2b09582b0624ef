#pragma once

#include <vector>

#include "trestle/plan/layer_profile.h"
#include "trestle/schedule/schedule.h"
#include "trestle/simulate/costs.h"

// From what layers cost to what stages cost: a cut that nobody has run yet, on paper.
namespace trestle::plan {

struct StageCostOptions {
  int optimizer_states = 0;  // tensors that an optimizer keeps for each parameter: Adam 2, SGD 0
  // For a loss over the whole batch: of how many micro-batches. 0 = a loss that adds up.
  int whole_batch_loss_over = 0;
  double bytes_per_second = 0;  // between stages; 0 = transfers take no time
};

struct CutCosts {
  simulate::Costs costs;  // one device for each stage; Transport::Pull
  // What travels, for schedule::LowerOptions: the main lane's routes, then the skips, which have the
  // names of the layers that make them. `costs.routes` has the same order.
  std::vector<schedule::Route> routes;
};

// Stage by stage, for balance[0] layers, then balance[1], ... Seconds are sums over a stage's layers;
// recomputation takes as long as forward, and I and W half of the backward each. Bytes of parameters,
// gradients, boundaries and skips are exact. What graphs keep and what runs need for a moment is
// walked through layer by layer, forward and backward, from each layer's own numbers, every buffer
// taken as one that a forward changes: near what Pipeline::profile() measures of the same cut
// (tests/pipeline/stage_costs_test.cpp says how near), without running it, and also where it does not
// fit. What a loss needs is not known, but for the model's outputs, with their gradients where it is
// taken over the whole batch. A profile that was measured on the plain CPU knows nothing of what
// layers keep inside.
//
// Throws UsageError for a balance that has an entry < 1 or another sum than there are layers, for
// options < 0, and where no value of the profile goes from a stage to a later one.
//
//   const CutCosts cut = costs_of_cut(profile, balance_by_time(profile, 4));
//   const auto table = schedule::generate("1f1b", {.stages = 4, .micro_batches = 8});
//   const auto timeline =
//       simulate::simulate(schedule::lower(table, {.routes = cut.routes}), cut.costs);
//   const double seconds = schedule::makespan(timeline);
CutCosts costs_of_cut(const LayerProfile& profile, const std::vector<int>& balance,
                      const StageCostOptions& options = {});

}  // namespace trestle::plan
