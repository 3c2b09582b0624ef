#include "trestle/pipeline/fit_advisor.h"

#include <algorithm>
#include <utility>

#include "trestle/comm/gather.h"
#include "trestle/device/device.h"
#include "trestle/pipeline/execute/micro_batch.h"
#include "trestle/plan/fit.h"

namespace trestle::pipeline {

void FitAdvisor::set_costs(simulate::Costs costs) {
  const std::lock_guard lock(mutex_);
  costs_ = std::move(costs);
}

void FitAdvisor::set_profiled_samples(std::int64_t samples) {
  const std::lock_guard lock(mutex_);
  samples_ = static_cast<int>(samples);
}

void FitAdvisor::gather_budgets(const comm::Group& group, const StageList& stages) {
  std::vector<std::pair<int, Bytes>> own;  // stage and budget
  for (const auto& stage : stages)
    own.emplace_back(stage.index(), memory_usage(stage.device()).budget);
  std::vector<Bytes> budgets(static_cast<std::size_t>(stages.count()), 0);
  for (const auto& rows : comm::all_gather_values(group, own))
    for (const auto& [stage, budget] : rows) budgets.at(static_cast<std::size_t>(stage)) = budget;
  const std::lock_guard lock(mutex_);
  budgets_ = std::move(budgets);
}

int FitAdvisor::planned_micro_batches() const {
  const std::lock_guard lock(mutex_);
  if (options_.plan.split_size > 0)
    return micro_batch_count_by_size(samples_, options_.plan.split_size);
  return samples_ > 0 ? std::min(options_.micro_batches, samples_) : options_.micro_batches;
}

std::string FitAdvisor::suggest(const ScheduleTables& tables, const StageList& stages) const {
  plan::FitQuestion question{
      .lower = [&](int count, const auto& modes) { return tables.lower(count, modes); },
      .micro_batches = std::max(planned_micro_batches(), 1),
      .split_size = options_.plan.split_size,
      .recompute = tables.recompute_modes()};
  const std::lock_guard lock(mutex_);
  question.samples = std::max(samples_, question.micro_batches);
  question.other_micro_batches = other_micro_batches(question.micro_batches);
  question.budgets = device_budgets(stages);
  return plan::suggest_fit(question, costs_);
}

// None for a user's own table: with another number of micro-batches the table would not run.
std::vector<int> FitAdvisor::other_micro_batches(int planned) const {
  std::vector<int> counts;
  if (options_.plan.table) return counts;
  for (const int times : {2, 4, 8}) {
    const int size = options_.plan.split_size / times;
    const int count = size > 0 ? micro_batch_count_by_size(samples_, size) : planned * times;
    if (count <= samples_) counts.push_back(count);
  }
  return counts;
}

std::vector<Bytes> FitAdvisor::device_budgets(const StageList& stages) const {
  std::vector<Bytes> budgets;
  for (std::size_t s = 0; s < costs_.device_of_stage.size(); ++s) {
    const auto device = static_cast<std::size_t>(costs_.device_of_stage[s]);
    const int stage = static_cast<int>(s);
    if (!stages.has(stage) && s >= budgets_.size()) continue;
    budgets.resize(std::max(budgets.size(), device + 1), 0);
    budgets[device] = stages.has(stage) ? memory_usage(stages[stage].device()).budget : budgets_[s];
  }
  return budgets;
}

}  // namespace trestle::pipeline
