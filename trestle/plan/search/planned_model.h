#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trestle/plan/machine/machine.h"
#include "trestle/plan/search/ledger.h"
#include "trestle/plan/search/link_bytes.h"
#include "trestle/plan/search/strategy.h"
#include "trestle/schedule/schedule.h"
#include "trestle/simulate/costs.h"

namespace trestle::plan {

// A rule that a strategy breaks.
struct BrokenRule {
  std::string rule;  // "heads": a short name
  std::string why;   // "64 heads do not divide over 3 tensor ranks"
};

// The costs of one step on one replica of the pipeline.
struct StrategyCosts {
  simulate::Costs costs;
  // For each stage: the seconds of a step that its rank waits for messages of its tensor group,
  // and for those of its data group. They are parts of the times in `costs`.
  std::vector<double> tensor_messages = {};
  std::vector<double> data_messages = {};
  std::vector<double> update_messages = {};  // the part of the latter after the optimizer's step
  // Lowered, with its optimizer's steps. Nothing: table_of() of the strategy (step_prediction.h),
  // which strategies share.
  std::optional<schedule::Schedule> table = {};
};

// A model as a search uses it, which lists strategies and calls these functions for their rules,
// bytes and costs. gpt/planned_gpt.h is a model by formulas.
class PlannedModel {
 public:
  virtual ~PlannedModel() = default;

  virtual std::string name() const = 0;
  virtual std::int64_t layers() const = 0;  // a stage has one or more
  virtual std::int64_t tokens() const = 0;  // of an example; 1 for a model without
  // FLOPs of a step of `batch` examples, without recomputation, and their formula.
  virtual double flops(std::int64_t batch) const = 0;
  virtual std::string flops_formula() const = 0;
  // A sentence on the origin of times and bytes.
  virtual std::string sources(const Machine& machine) const = 0;
  // Schedules and recomputations to search, in the order of preference where they make no
  // difference.
  virtual std::vector<std::string> schedules() const { return {"1f1b", "gpipe"}; }
  virtual std::vector<BlockRecompute> recomputations() const {
    return {BlockRecompute::None, BlockRecompute::Selective, BlockRecompute::All};
  }
  virtual bool splits_tokens() const { return false; }  // Strategy::sequence_parallel
  // Strategy::recompute_layers and recompute_stages above 0 to search beside 0, for a strategy with
  // recomputation; and whether to search Strategy::offload.
  virtual std::vector<int> recompute_layers(const Strategy&) const { return {}; }
  virtual std::vector<int> recompute_stages(const Strategy&) const { return {}; }
  virtual bool offloads() const { return false; }
  // The types that the model can have. The first one is its own.
  virtual std::vector<Precision> precisions() const { return {Precision::Bf16}; }

  // Whether a new number of tensor ranks takes long, in broken_rules() too, because the model then
  // measures its layers. The search for other numbers of devices tries no new ones then.
  virtual bool measures() const { return false; }

  // The model's own rules that the strategy breaks. search.h has those that hold for any model. A
  // search calls it with the degrees alone, and again with each choice that may have rules of its
  // own: a level, rows of shards, offload, a schedule that is kept, chunks, another precision,
  // token shards, partial recomputation.
  virtual std::vector<BrokenRule> broken_rules(const Strategy& strategy) const = 0;
  // The same for the size of a micro-batch alone, of a strategy with degrees and micro-batch.
  virtual std::vector<BrokenRule> rules_of_micro_batch(const Strategy&) const { return {}; }
  // One for each rank of the pipeline, in order. The strategy is legal.
  virtual std::vector<Ledger> ledgers(const Strategy& strategy,
                                      std::int64_t micro_batches) const = 0;
  virtual StrategyCosts costs(const Strategy& strategy, std::int64_t micro_batches) const = 0;
  // The same, perhaps without StrategyCosts::table. A search calls it for the bound of every
  // strategy that fits, and costs() for those that it simulates.
  virtual StrategyCosts costs_without_table(const Strategy& strategy,
                                            std::int64_t micro_batches) const {
    return costs(strategy, micro_batches);
  }

  // One for each rank of the pipeline: the bytes that it sends. Nothing if the model does not know
  // them.
  virtual std::vector<LinkBytes> sent(const Strategy&, std::int64_t /*micro_batches*/) const {
    return {};
  }

  // The first of the largest ledgers. A search calls it for every legal strategy, so a model whose
  // stages are alike may compute fewer of them.
  virtual Ledger worst_ledger(const Strategy& strategy, std::int64_t micro_batches) const;
};

}  // namespace trestle::plan
