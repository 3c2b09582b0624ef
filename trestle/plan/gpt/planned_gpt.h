#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/plan/gpt/gpt_model.h"
#include "trestle/plan/machine/machine.h"
#include "trestle/plan/search/planned_model.h"

namespace trestle::plan {

// The layers of each stage. Equal numbers if the stages divide them; otherwise the cut whose
// slowest stage is fastest, with the embedding on the first and the head on the last.
std::vector<int> layers_of_stages(const GptModel& model, const Strategy& strategy,
                                  const Machine& machine);

// The parameters of one device in each stage, the tables of the embedding and the head included. A
// tied head has a copy of its table on the last stage if there are several.
std::vector<double> parameters_of_stages(const GptModel& model, const Strategy& strategy,
                                         const std::vector<int>& layers);

// The ranks of a replica are placed with the tensor ranks next to each other, then the data ranks,
// then the stages, as Megatron-LM places them.
GroupPlace place_of_tensor_group(const Strategy& strategy, const Machine& machine);
GroupPlace place_of_data_group(const Strategy& strategy, const Machine& machine);
Reach reach_of_stages(const Strategy& strategy, const Machine& machine);

// A GPT by formulas on a machine. Weights and gradients have 2 bytes, and Adam's state 12.
class PlannedGpt : public PlannedModel {
 public:
  PlannedGpt(const GptModel& model, const Machine& machine) : model_(model), machine_(machine) {}

  std::string name() const override { return describe(model_); }
  std::int64_t layers() const override { return model_.layers; }
  std::int64_t tokens() const override { return model_.sequence; }
  double flops(std::int64_t batch) const override;
  std::string flops_formula() const override;
  std::string sources(const Machine& machine) const override;
  bool splits_tokens() const override { return true; }

  // Heads and tokens divide over the tensor ranks, and these divide a node.
  std::vector<BrokenRule> broken_rules(const Strategy& strategy) const override;
  std::vector<Ledger> ledgers(const Strategy& strategy, std::int64_t micro_batches) const override;
  StrategyCosts costs(const Strategy& strategy, std::int64_t micro_batches) const override;

 private:
  GptModel model_;
  Machine machine_;
};

}  // namespace trestle::plan
