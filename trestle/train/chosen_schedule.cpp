#include "trestle/train/chosen_schedule.h"

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/train/recipe_schedule.h"
#include "trestle/train/schedule_search.h"
#include "trestle/train/task.h"

namespace trestle::train {
namespace {

// The number of stages that the recipe sets; 0 = the search is free.
int given_stages(const recipe::Recipe& recipe, int ranks) {
  const auto stages = static_cast<int>(recipe.pipeline.balance.size());
  if (stages % ranks != 0)
    throw UsageError(text("'balance' in [pipeline] has ", counted(stages, "stage"), " for ",
                          counted(ranks, "rank")),
                     {.hint = "Leave it out: schedule = \"auto\" cuts the model itself."});
  const auto each = static_cast<int>(recipe.pipeline.stages_per_rank);
  if (stages > 0 && each > 0 && stages != ranks * each)
    throw UsageError(text("'balance' in [pipeline] has ", counted(stages, "stage"), ", and ",
                          counted(ranks, "rank"), " of ", each, " stages have ", ranks * each));
  return stages > 0 ? stages : ranks * each;
}

// One rank runs its micro-batches one after the other, in the memory of one.
recipe::Recipe for_one_rank(recipe::Recipe recipe, const UserParts& user_parts) {
  const bool whole = loss_of(recipe, user_parts).kind == nn::Loss::Kind::WholeBatch;
  recipe.pipeline.schedule = whole ? "gpipe" : "1f1b";
  return recipe;
}

std::vector<std::string> reasons_of(const plan::ScheduleAnswer& answer) {
  const plan::SimulatedSchedule& best = *answer.best;
  std::vector<std::string> lines = {
      text("schedule  ", best.name == "auto" ? best.made_from : best.name, " · ",
           counted(best.stages_per_rank, "stage"), " on a rank · ", format_duration(best.seconds),
           " a step on paper (", answer.simulated, " schedules simulated)")};
  for (const std::string& line : answer.trades()) lines.push_back("          " + line);
  return lines;
}

}  // namespace

ChosenSchedule choose_schedule(const recipe::Recipe& recipe, const LayerCosts& costs,
                               const HostTimes& times, const UserParts& user_parts) {
  if (recipe.pipeline.recompute.size() > 1)
    throw UsageError(text("'recompute' in [pipeline] has ", recipe.pipeline.recompute.size(),
                          " entries, and schedule = \"auto\" has not chosen the stages yet"),
                     {.hint = "Give one word for all stages."});
  const auto ranks = static_cast<int>(costs.devices.size());
  if (ranks == 1 && recipe.pipeline.balance.size() <= 1) {
    recipe::Recipe alone = for_one_rank(recipe, user_parts);
    std::string line = text("schedule  ", alone.pipeline.schedule, " · the model is on one rank");
    return {.recipe = std::move(alone), .reasons = {std::move(line)}};
  }
  const int stages = given_stages(recipe, ranks);
  const plan::ScheduleAnswer answer = find_schedule(
      recipe, costs,
      {.stages_per_rank = stages > 0 ? std::vector<int>{stages / ranks} : std::vector<int>{1, 2},
       .stages = stages,
       .times = times},
      user_parts);
  if (!answer.best) {
    const plan::SimulatedSchedule& least = answer.fixed.front();
    throw UsageError(text("no schedule fits the memory of the devices: ", least.name,
                          " needs least, ", format_bytes(least.peak), " on rank ", least.peak_rank),
                     {.hint = "Take smaller micro-batches, recompute, or use more devices."});
  }
  ChosenSchedule chosen{.recipe = recipe, .reasons = reasons_of(answer)};
  const plan::SimulatedSchedule& best = *answer.best;
  auto& pipeline = chosen.recipe.pipeline;
  pipeline.schedule = best.name;
  if (best.name == "auto") {
    pipeline.table = rows_of(best.table);
    pipeline.stages_per_rank = 0;  // the table's
  }
  if (pipeline.balance.empty()) {
    const auto balance = balance_of_search(costs, best.table.rank_of_stage);
    pipeline.balance.assign(balance.begin(), balance.end());
  }
  return chosen;
}

}  // namespace trestle::train
