#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trestle/device/device.h"
#include "trestle/plan/search/planned_model.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/layer_costs.h"
#include "trestle/train/layers_on_paper.h"
#include "trestle/train/trainer.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// The devices that a recipe is planned for.
struct PlannedDevices {
  Device device;  // each of them: its kind and its budget
  int count = 1;
  HostTimes times = {};  // of messages and optimizers on them
  // The sentence that names their source; empty = measured here, between threads.
  std::string source_of_times = {};
  // Cores that the devices share, as virtual devices and ranks on CPUs do; 0 = each device computes
  // on one core of its own.
  int cores = 0;
  // Whether each stage has a rank of its own in a pipeline without replicas too. Otherwise one
  // process has all its stages.
  bool always_ranks = false;
  // Gets a line before each measurement of the layers, which may take long; may be empty.
  std::function<void(const std::string&)> says = {};
};

// A recipe's model for a search over strategies (plan/search/search.h). Its layers are measured on
// small samples, once for each number of tensor ranks, and its steps are those that `--dry-run`
// predicts.
//
//   const Device device = virtual_devices(1, 512_MiB)[0];
//   const PlannedRecipe model(recipe, hooks, {.device = device, .count = 4});
//   const auto found = plan::find_plans(model, machine, {.devices = 4, .batch = model.batch()});
//   const recipe::Recipe best = model.recipe_of(found.best.at(0).strategy);
//
// Recomputation is that of a recipe's `recompute` for a model of any kind, and `checkpoint` for a
// transformer, which can recompute its attention alone.
class PlannedRecipe final : public plan::PlannedModel {
 public:
  // Checks the recipe, and measures its layers. Throws UsageError for what train() would refuse.
  PlannedRecipe(const recipe::Recipe& recipe, const TrainHooks& hooks, PlannedDevices devices);
  ~PlannedRecipe() override;

  // The recipe with the strategy in [mesh], [pipeline] and [devices], and with the cut that the
  // strategy was planned with as its balance.
  recipe::Recipe recipe_of(const plan::Strategy& strategy) const;

  std::string name() const override;
  std::int64_t layers() const override;
  std::int64_t tokens() const override;
  double flops(std::int64_t batch) const override;
  std::string flops_formula() const override;
  std::string sources(const plan::Machine& machine) const override;
  std::vector<std::string> schedules() const override;
  std::vector<plan::BlockRecompute> recomputations() const override;
  bool splits_tokens() const override;
  // One, half and all but one of the stages.
  std::vector<int> recompute_stages(const plan::Strategy& strategy) const override;
  bool measures() const override { return true; }
  std::vector<plan::Precision> precisions() const override;
  std::vector<plan::BrokenRule> broken_rules(const plan::Strategy& strategy) const override;
  std::vector<plan::BrokenRule> rules_of_micro_batch(const plan::Strategy& strategy) const override;
  // The bytes beyond parameters, gradients and the optimizer's state stand under activations.
  std::vector<plan::Ledger> ledgers(const plan::Strategy& strategy,
                                    std::int64_t micro_batches) const override;
  plan::StrategyCosts costs(const plan::Strategy& strategy,
                            std::int64_t micro_batches) const override;
  // With 'link' in [mesh], those to ranks of other hosts stand under other nodes.
  std::vector<plan::LinkBytes> sent(const plan::Strategy& strategy,
                                    std::int64_t micro_batches) const override;

  std::int64_t batch() const { return recipe_.train.batch; }

 private:
  // A model that `tensor` ranks split, or why they cannot.
  struct Variant {
    std::unique_ptr<LayersOnPaper> layers;
    std::string refusal;
  };
  struct Cut;  // a strategy's stages

  recipe::Recipe with_strategy(const plan::Strategy& strategy) const;
  // The threads of an operator, as a run gives them to its devices or ranks.
  int threads_of(const plan::Strategy& strategy) const;
  HostTimes times_of(const plan::Strategy& strategy) const;
  const Variant& variant(const plan::Strategy& strategy, int threads) const;
  const Variant& plain() const;  // on one rank, as wide as a rank of all devices
  const LayerCosts& layer_costs_of(const plan::Strategy& strategy) const;
  const Cut& cut_of(const plan::Strategy& strategy) const;

  recipe::Recipe recipe_;
  TrainHooks hooks_;
  PlannedDevices devices_;
  mutable std::map<std::string, Variant> variants_;  // by what changes the layers
  // By the strategy. The search needs its bytes, and then its costs once or twice.
  mutable std::map<std::string, Cut> cuts_;
  mutable std::map<std::string, LayerCosts> costs_;  // of a micro-batch of a variant
  // By the variant: why it does not take a micro-batch of one example; empty = it does.
  mutable std::map<std::string, std::string> refused_examples_;
};

}  // namespace trestle::train
