#include "trestle/train/schedule_search.h"

#include <algorithm>
#include <optional>

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

Bytes memory_of_search(const LayerCosts& costs) {
  Bytes least = 0;
  for (const Bytes budget : costs.budgets)
    if (budget > 0) least = least > 0 ? std::min(least, budget) : budget;
  return least;
}

std::vector<int> balance_of_search(const LayerCosts& costs, std::size_t stages) {
  return plan::balance_by_time(costs.profile, static_cast<int>(stages));
}

plan::ScheduleAnswer find_schedule(const recipe::Recipe& recipe, const LayerCosts& costs,
                                   const SearchedSchedules& searched, const UserParts& user_parts) {
  const std::vector<std::int64_t>& given = recipe.pipeline.balance;
  plan::ScheduleQuestion question{
      .ranks = static_cast<int>(costs.devices.size()),
      .micro_batches = costs.sizes.micro_batches,
      .stages_per_rank = searched.stages_per_rank,
      .memory = searched.memory,
      .whole_batch_loss = loss_of(recipe, user_parts).kind == nn::Loss::Kind::WholeBatch,
      .recompute = schedule::parse_recompute(recipe.pipeline.recompute.at(0))};
  question.stages =
      [&](const std::vector<int>& rank_of_stage) -> std::optional<plan::PlacedStages> {
    const std::size_t stages = rank_of_stage.size();
    if (given.empty() ? stages > costs.profile.layers.size() : stages != given.size())
      return std::nullopt;
    LayerCosts placed = costs;
    placed.devices.clear();
    placed.budgets.clear();
    for (const int rank : rank_of_stage) {
      placed.devices.push_back(costs.devices[static_cast<std::size_t>(rank)]);
      placed.budgets.push_back(costs.budgets[static_cast<std::size_t>(rank)]);
    }
    const std::vector<int> balance = given.empty() ? balance_of_search(costs, stages)
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
