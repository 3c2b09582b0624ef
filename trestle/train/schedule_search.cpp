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
  recipe.pipeline.schedule = "gpipe";  // which every loss allows
  return recipe;
}

plan::ScheduleAnswer find_schedule(const recipe::Recipe& recipe, const LayerCosts& costs,
                                   const std::vector<int>& stages_per_rank, Bytes memory,
                                   const UserParts& user_parts) {
  const auto ranks = static_cast<int>(costs.devices.size());
  const auto layers = costs.profile.layers.size();
  plan::ScheduleQuestion question{
      .ranks = ranks,
      .micro_batches = costs.sizes.micro_batches,
      .stages_per_rank = stages_per_rank,
      .memory = memory,
      .whole_batch_loss = loss_of(recipe, user_parts).kind == nn::Loss::Kind::WholeBatch,
      .recompute = schedule::parse_recompute(recipe.pipeline.recompute.at(0))};
  if (question.memory == 0)
    for (const Bytes budget : costs.budgets)
      if (budget > 0)
        question.memory = question.memory > 0 ? std::min(question.memory, budget) : budget;
  question.stages =
      [&](const std::vector<int>& rank_of_stage) -> std::optional<plan::PlacedStages> {
    if (rank_of_stage.size() > layers) return std::nullopt;
    LayerCosts placed = costs;
    placed.devices.clear();
    placed.budgets.clear();
    for (const int rank : rank_of_stage) {
      placed.devices.push_back(costs.devices[static_cast<std::size_t>(rank)]);
      placed.budgets.push_back(costs.budgets[static_cast<std::size_t>(rank)]);
    }
    const auto balance =
        plan::balance_by_time(costs.profile, static_cast<int>(rank_of_stage.size()));
    plan::CutCosts cut = costs_of_cut(recipe, placed, balance, user_parts);
    // The question is about ranks of their own, also where the recipe's devices are one CPU.
    cut.costs.concurrency = simulate::Concurrency::EachRank;
    cut.costs.device_of_stage = rank_of_stage;
    return plan::PlacedStages{.costs = std::move(cut.costs), .routes = std::move(cut.routes)};
  };
  return plan::find_schedule(question);
}

}  // namespace trestle::train
