#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "trestle/base/units.h"
#include "trestle/pipeline/execute/stage_list.h"
#include "trestle/pipeline/pipeline_options.h"
#include "trestle/pipeline/schedule_tables.h"
#include "trestle/simulate/costs.h"

namespace trestle::pipeline {

// Suggests what would make a step fit the devices' budgets, from the costs of the last profile().
// Several threads may use it.
class FitAdvisor {
 public:
  explicit FitAdvisor(const PipelineOptions& options) : options_(options) {}  // keeps a reference

  void set_costs(simulate::Costs costs);
  void set_profiled_samples(std::int64_t samples);  // of the profiled mini-batch

  // Gathers the budgets of all ranks' devices. All ranks of the group call it.
  void gather_budgets(const comm::Group& group, const StageList& stages);

  // The number of micro-batches of the profiled mini-batch. Before that: options.micro_batches, or
  // 0 with plan.split_size.
  int planned_micro_batches() const;

  // One sentence.
  std::string suggest(const ScheduleTables& tables, const StageList& stages) const;

 private:
  std::vector<int> other_micro_batches(int planned) const;
  std::vector<Bytes> device_budgets(const StageList& stages) const;

  const PipelineOptions& options_;
  mutable std::mutex mutex_;
  simulate::Costs costs_;
  int samples_ = 0;
  std::vector<Bytes> budgets_;  // over ranks: [stage] of its device, 0 = none
};

}  // namespace trestle::pipeline
