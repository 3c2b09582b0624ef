#include "trestle/train/chosen_schedule.h"

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/train/recipe_schedule.h"
#include "trestle/train/schedule_search.h"

namespace trestle::train {
namespace {

// The numbers of stages on a rank to try: that of the recipe, or 1 and 2.
std::vector<int> numbers_of_stages(const recipe::Recipe& recipe, int ranks) {
  const auto stages = static_cast<int>(recipe.pipeline.balance.size());
  if (stages > 0) {
    if (stages % ranks != 0)
      throw UsageError(text("'balance' in [pipeline] has ", counted(stages, "stage"), " for ",
                            counted(ranks, "rank")),
                       {.hint = "Leave it out: schedule = \"auto\" cuts the model itself."});
    return {stages / ranks};
  }
  if (recipe.pipeline.stages_per_rank > 0)
    return {static_cast<int>(recipe.pipeline.stages_per_rank)};
  return {1, 2};
}

std::vector<std::string> reasons_of(const plan::ScheduleAnswer& answer, Bytes memory) {
  const plan::SimulatedSchedule& best = *answer.best;
  std::vector<std::string> lines = {
      text("schedule  ", best.name == "auto" ? best.made_from : best.name, " · ",
           counted(best.stages_per_rank, "stage"), " on a rank · ", format_duration(best.seconds),
           " a step on paper (", answer.simulated, " schedules simulated)")};
  for (const std::string& line : answer.trades(memory)) lines.push_back("          " + line);
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
  const Bytes memory = memory_of_search(costs);
  const plan::ScheduleAnswer answer = find_schedule(
      recipe, costs,
      {.stages_per_rank = numbers_of_stages(recipe, ranks), .memory = memory, .times = times},
      user_parts);
  if (!answer.best) {
    const plan::SimulatedSchedule& least = answer.fixed.front();
    throw UsageError(text("no schedule fits ", format_bytes(memory), " a rank: ", least.name,
                          " needs least, ", format_bytes(least.peak), " on rank ", least.peak_rank),
                     {.hint = "Take smaller micro-batches, recompute, or name a schedule."});
  }
  ChosenSchedule chosen{.recipe = recipe, .reasons = reasons_of(answer, memory)};
  const plan::SimulatedSchedule& best = *answer.best;
  auto& pipeline = chosen.recipe.pipeline;
  pipeline.schedule = best.name;
  pipeline.stages_per_rank = best.name == "auto" ? 0 : best.stages_per_rank;
  if (best.name == "auto") pipeline.table = rows_of(best.table);
  if (pipeline.balance.empty()) {
    const auto balance = balance_of_search(costs, static_cast<std::size_t>(best.table.stages));
    pipeline.balance.assign(balance.begin(), balance.end());
  }
  return chosen;
}

}  // namespace trestle::train
