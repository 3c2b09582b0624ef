#pragma once

#include <vector>

#include "trestle/plan/layer_profile.h"
#include "trestle/schedule/schedule.h"
#include "trestle/simulate/costs.h"

// Computes the costs of stages from the costs of layers, for a cut that has not run.
namespace trestle::plan {

// The memory of units of parameters (FSDP, ZeRO-3) while a layer runs, in bytes, beside the memory
// that the layer's profile has.
struct UnitMemory {
  Bytes forward = 0;   // the gathered parameters
  Bytes backward = 0;  // the same, and gradients until they are reduced
};

struct StageCostOptions {
  int optimizer_states = 0;  // state tensors of the optimizer for each parameter: Adam 2, SGD 0
  // For a whole-batch loss: the number of micro-batches. 0 = an additive loss.
  int whole_batch_loss_over = 0;
  // The peak of an additive loss of one micro-batch and its backward, in bytes for each byte of the
  // model's outputs: without the outputs, which its graph keeps anyway, and with their gradients.
  // 0 = unknown.
  double additive_loss_memory = 0;
  double bytes_per_second = 0;  // between stages; 0 = transfers take no time
  // For parameters that are gathered unit by unit, one entry for each layer of the model, or none.
  std::vector<UnitMemory> units = {};
  // A finished backward of a layer keeps this part of its gradients: one of `gradient_shards`.
  int gradient_shards = 1;
};

struct CutCosts {
  simulate::Costs costs;  // one device for each stage; TransferMode::Pull
  // The routes, for schedule::LowerOptions: first the main lane's, then the skips', which carry the
  // names of the producing layers. `costs.routes` has the same order.
  std::vector<schedule::Route> routes;
};

// Throws UsageError for an entry < 1, and for a sum other than the number of layers.
void check_cut(const std::vector<int>& balance, std::size_t layers);

// The first stage has balance[0] layers, the next balance[1], and so on. A stage's times are sums
// over its layers; recomputation takes as long as forward, and I and W each take half of the
// backward unless the profile has them. Bytes of parameters, gradients, copies of tied parameters,
// boundaries and skips are exact. The activations and transient memory come from a walk through the
// layers, forward and backward, which assumes that a forward changes every buffer. They are close
// to what Pipeline::profile() measures of the same cut (tests/pipeline/stage_costs_test.cpp checks
// how close), and are also available for a cut that does not fit. The memory of an additive loss is
// an option. A profile that was measured on the plain CPU has no activations inside layers.
//
// Throws UsageError for a balance with an entry < 1 or with a sum other than the number of layers,
// for negative options, and if no value of the profile crosses one of the cuts.
//
//   const CutCosts cut = costs_of_cut(profile, balance_by_time(profile, 4));
//   const auto table = schedule::generate("1f1b", {.stages = 4, .micro_batches = 8});
//   const auto timeline =
//       simulate::simulate(schedule::lower(table, {.routes = cut.routes}), cut.costs);
//   const double seconds = schedule::makespan(timeline);
CutCosts costs_of_cut(const LayerProfile& profile, const std::vector<int>& balance,
                      const StageCostOptions& options = {});

}  // namespace trestle::plan
