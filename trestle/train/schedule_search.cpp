#include "trestle/train/schedule_search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/nn/loss.h"
#include "trestle/plan/balance.h"
#include "trestle/train/setup.h"
#include "trestle/train/task.h"

namespace trestle::train {

recipe::Recipe recipe_to_search(recipe::Recipe recipe) {
  recipe.pipeline.balance.clear();
  recipe.pipeline.stages_per_rank = 0;
  recipe.pipeline.table.clear();
  recipe.pipeline.schedule = "gpipe";  // which every loss allows
  return recipe;
}

namespace {

LayerCosts with_stages(LayerCosts costs, const std::vector<int>& rank_of_stage) {
  const std::vector<std::string> devices = std::exchange(costs.devices, {});
  const std::vector<Bytes> budgets = std::exchange(costs.budgets, {});
  for (const int rank : rank_of_stage) {
    costs.devices.push_back(devices[static_cast<std::size_t>(rank)]);
    costs.budgets.push_back(budgets[static_cast<std::size_t>(rank)]);
  }
  return costs;
}

}  // namespace

std::vector<int> balance_of_search(const LayerCosts& costs, const std::vector<int>& rank_of_stage) {
  const LayerCosts placed = with_stages(costs, rank_of_stage);
  const auto stages = static_cast<int>(rank_of_stage.size());
  if (std::ranges::all_of(costs.budgets, [](Bytes budget) { return budget == 0; }))
    return plan::balance_by_time(costs.profile, stages);
  try {
    return plan::balance_within(costs.profile, placed.budgets, costs.sizes, rank_of_stage);
  } catch (const UsageError&) {  // its bound counts more micro-batches than some schedules keep
    return plan::balance_by_size(costs.profile, stages, costs.sizes);
  }
}

plan::ScheduleAnswer find_schedule(const recipe::Recipe& recipe, const LayerCosts& costs,
                                   const SearchedSchedules& searched, const UserParts& user_parts) {
  const std::vector<std::int64_t>& given = recipe.pipeline.balance;
  plan::ScheduleQuestion question{
      .ranks = static_cast<int>(costs.devices.size()),
      .micro_batches = costs.sizes.micro_batches,
      .stages_per_rank = searched.stages_per_rank,
      .memory = searched.memory,
      .memory_of_rank = searched.memory > 0 ? std::vector<Bytes>() : costs.budgets,
      .whole_batch_loss = loss_of(recipe, user_parts).kind == nn::Loss::Kind::WholeBatch,
      .recompute = schedule::parse_recompute(recipe.pipeline.recompute.at(0))};
  question.stages =
      [&](const std::vector<int>& rank_of_stage) -> std::optional<plan::PlacedStages> {
    const std::size_t stages = rank_of_stage.size();
    if (stages > costs.profile.layers.size()) return std::nullopt;
    if (searched.stages > 0 && stages != static_cast<std::size_t>(searched.stages))
      return std::nullopt;
    const LayerCosts placed = with_stages(costs, rank_of_stage);
    const std::vector<int> balance = given.empty() ? balance_of_search(costs, rank_of_stage)
                                                   : std::vector<int>(given.begin(), given.end());
    plan::CutCosts cut = costs_of_cut(recipe, placed, balance, user_parts);
    // The question is about ranks of their own, also where the recipe's devices are one CPU.
    cut.costs.concurrency = simulate::Concurrency::EachRank;
    cut.costs.device_of_stage = rank_of_stage;
    add_message_times(recipe, placed, balance, rank_of_stage, searched.times, &cut.costs);
    return plan::PlacedStages{.costs = std::move(cut.costs), .routes = std::move(cut.routes)};
  };
  return plan::find_schedule(question);
}

}  // namespace trestle::train
