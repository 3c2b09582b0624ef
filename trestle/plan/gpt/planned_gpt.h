#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
// then the stages, as Megatron-LM places them. The data ranks that shard a state are next to each
// other: a data group is a row of them, with the same tensor rank, and a row group has one rank of
// each row. Without Strategy::replicate there is one row.
GroupPlace place_of_tensor_group(const Strategy& strategy, const Machine& machine);
GroupPlace place_of_data_group(const Strategy& strategy, const Machine& machine);
GroupPlace place_of_row_group(const Strategy& strategy, const Machine& machine);
// Between stage and stage + 1: Between if the link of a node carries any of their messages.
Reach reach_after_stage(const Strategy& strategy, const Machine& machine, int stage);

// The blocks of a stage with this number of layers that the strategy recomputes: the first ones.
int recomputed_blocks(const Strategy& strategy, int layers);

// A GPT by formulas on a machine. Weights and gradients have 2 bytes, and Adam's state 12. In fp32
// they have 4, 4 and 8, everything else has twice the bytes, and products run at
// Machine::peak_fp32. Offloaded shards pass between device and host before and after each use, and
// nothing hides it: at levels 1 and 2 gradients down and weights up in each step, at level 3
// weights up before each gather and gradients down after each backward. Their update runs on the
// host.
class PlannedGpt : public PlannedModel {
 public:
  PlannedGpt(const GptModel& model, const Machine& machine);

  std::string name() const override;
  std::int64_t layers() const override { return model_.layers; }
  std::int64_t tokens() const override { return model_.sequence; }
  double flops(std::int64_t batch) const override;
  std::string flops_formula() const override;
  std::string sources(const Machine& machine) const override;
  bool splits_tokens() const override { return true; }
  // Quarters of a stage's layers, rounded up.
  std::vector<int> recompute_layers(const Strategy& strategy) const override;
  bool offloads() const override { return true; }
  std::vector<Precision> precisions() const override { return {Precision::Bf16, Precision::Fp32}; }

  // Heads and tokens divide over the tensor ranks, and these divide a node. Offload needs the
  // machine's host, whose memory holds what its devices offload, and fp32 its peak.
  std::vector<BrokenRule> broken_rules(const Strategy& strategy) const override;
  std::vector<Ledger> ledgers(const Strategy& strategy, std::int64_t micro_batches) const override;
  StrategyCosts costs(const Strategy& strategy, std::int64_t micro_batches) const override;
  std::vector<LinkBytes> sent(const Strategy& strategy, std::int64_t micro_batches) const override;
  // Computes the first of stages with equal layers, which has the most micro-batches in flight.
  Ledger worst_ledger(const Strategy& strategy, std::int64_t micro_batches) const override;

 private:
  // The stages and the times of their blocks, which strategies share that differ in the rest.
  struct Layout;
  struct Layouts;
  // The machine that computes in the strategy's precision.
  const Machine& machine_for(const Strategy& strategy) const;
  // The bytes that the devices of a node offload, at most.
  double host_bytes(const Strategy& strategy) const;
  const Layout& layout_of(const Strategy& strategy) const;
  Ledger ledger_of(const Strategy& strategy, std::int64_t micro_batches, const Layout& layout,
                   std::size_t stage) const;

  GptModel model_;
  Machine machine_;
  std::shared_ptr<Layouts> layouts_;  // those found so far; copies of the model share them
};

}  // namespace trestle::plan
