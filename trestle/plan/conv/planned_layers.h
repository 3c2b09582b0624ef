#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trestle/plan/conv/layer_list.h"
#include "trestle/plan/machine/machine.h"
#include "trestle/plan/search/planned_model.h"
#include "trestle/plan/stage_costs.h"

namespace trestle::plan {

// A list of layers by formulas on a machine, in fp32. Stages are cut by plan/balance.h: the fastest
// cut that fits into Machine::memory, or the fastest one if none fits. PlanRequest::memory changes
// no cut: give the limit to the machine too. Replicas reduce their gradients after the last
// backward. Recomputation repeats the forwards of all micro-batches but the last (torchgpipe's
// "except_last").
//
//   const plan::PlannedLayers model(plan::unet_list({.image = 192}), machine);
//   const plan::PlanResult plans = plan::find_plans(model, machine, {.devices = 8, .batch = 640});
class PlannedLayers : public PlannedModel {
 public:
  struct Options {
    // State tensors of the optimizer for each parameter: Adam 2, SGD 0.
    int optimizer_states = 2;
    // The layers of each stage, for strategies with this number of stages. Empty = the best cut.
    std::vector<int> balance = {};
  };

  PlannedLayers(LayerList list, const Machine& machine)
      : PlannedLayers(std::move(list), machine, Options()) {}
  PlannedLayers(LayerList list, const Machine& machine, Options options);

  std::string name() const override;
  std::int64_t layers() const override;
  std::int64_t tokens() const override { return 1; }
  double flops(std::int64_t batch) const override;
  std::string flops_formula() const override { return "3 B times the FLOPs of a forward"; }
  std::string sources(const Machine& machine) const override;
  std::vector<BlockRecompute> recomputations() const override {
    return {BlockRecompute::None, BlockRecompute::All};
  }
  std::vector<Precision> precisions() const override { return {Precision::Fp32}; }

  // A strategy has stages of whole layers in fp32, replicas, GPipe or 1f1b, and recomputation of
  // all layers or none. Everything else is a broken rule.
  std::vector<BrokenRule> broken_rules(const Strategy& strategy) const override;
  std::vector<Ledger> ledgers(const Strategy& strategy, std::int64_t micro_batches) const override;
  StrategyCosts costs(const Strategy& strategy, std::int64_t micro_batches) const override;
  StrategyCosts costs_without_table(const Strategy& strategy,
                                    std::int64_t micro_batches) const override;

  // The number of layers of each stage.
  std::vector<int> cut_of(const Strategy& strategy, std::int64_t micro_batches) const;

 private:
  // Strategies with one size of micro-batches share it.
  struct Sized;
  Sized& sized(int micro_batch) const;
  const CutCosts& cut_costs(const Strategy& strategy, std::int64_t micro_batches) const;

  LayerList list_;
  Machine machine_;
  Options options_;
  mutable std::map<int, std::shared_ptr<Sized>> sized_;  // by micro-batch
  mutable std::map<int, std::vector<int>> fastest_;      // by stages
};

}  // namespace trestle::plan
