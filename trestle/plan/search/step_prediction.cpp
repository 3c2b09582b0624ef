#include "trestle/plan/search/step_prediction.h"

#include <algorithm>
#include <cstddef>

#include "trestle/schedule/data_parallel.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/optimizer_steps.h"
#include "trestle/simulate/simulate.h"

namespace trestle::plan {
namespace {

double pass_seconds(const simulate::StageCost& stage) { return stage.forward + stage.backward; }

double longest_update(const simulate::Costs& costs) {
  double seconds = 0;
  for (const auto& stage : costs.stages) seconds = std::max(seconds, stage.step);
  return seconds;
}

// The seconds after the last backward of the first stage.
double tail_seconds(const simulate::Costs& costs) {
  return costs.stages.front().reduce + costs.stages.front().norm + longest_update(costs);
}

}  // namespace

schedule::Schedule table_of(const Strategy& strategy, std::int64_t micro_batches) {
  const auto table = schedule::generate(
      strategy.schedule,
      {.stages = strategy.pipeline, .micro_batches = static_cast<int>(micro_batches)});
  return schedule::add_optimizer_steps(schedule::add_reductions(schedule::lower(table, {})));
}

StepPrediction predict_step(const schedule::Schedule& table, int chunks,
                            const StrategyCosts& costs) {
  const auto timeline = simulate::simulate(table, costs.costs);
  StepPrediction prediction{.seconds = schedule::makespan(timeline)};
  std::size_t slowest = 0;
  const auto& stages = costs.costs.stages;
  for (std::size_t s = 1; s < stages.size(); ++s)
    if (pass_seconds(stages[s]) > pass_seconds(stages[slowest])) slowest = s;
  // Recomputed forwards count too.
  const double busy =
      schedule::busy(timeline)[static_cast<std::size_t>(timeline.rank_of_stage.at(slowest))];
  if (chunks > 1) {
    const double fill = std::max(prediction.seconds - busy - tail_seconds(costs.costs), 0.0);
    prediction.seconds -= fill * (1 - 1.0 / chunks);
  }
  prediction.slowest_stage = static_cast<int>(slowest);
  const auto of_slowest = [slowest](const std::vector<double>& seconds) {
    return seconds.empty() ? 0 : seconds[slowest];
  };
  const double inside = of_slowest(costs.tensor_messages), data = of_slowest(costs.data_messages);
  const double update = of_slowest(costs.update_messages);
  // The data group's `reduce` and its part of `step` are outside of F and B.
  const double beside_passes = data - stages[slowest].reduce - update;
  prediction.exposed = inside + data;
  prediction.compute = busy - inside - std::max(beside_passes, 0.0);
  prediction.optimizer = stages[slowest].norm + stages[slowest].step - update;
  prediction.bubble = std::max(
      prediction.seconds - prediction.compute - prediction.exposed - prediction.optimizer, 0.0);
  return prediction;
}

StepPrediction predict_step(const Strategy& strategy, std::int64_t micro_batches,
                            const StrategyCosts& costs) {
  return predict_step(table_of(strategy, micro_batches), strategy.chunks, costs);
}

double least_step_seconds(std::int64_t micro_batches, int chunks, const StrategyCosts& costs) {
  const auto& stages = costs.costs.stages;
  const auto& routes = costs.costs.routes;
  double least = 0, forwards = 0, backwards = 0;  // the latter two of the earlier stages
  double all_passes = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const double passes = static_cast<double>(micro_batches) * pass_seconds(stages[s]);
    all_passes += passes;
    least = std::max(least, (forwards + backwards) / chunks + passes);
    if (s < routes.size()) {
      forwards += stages[s].forward + routes[s].seconds;
      backwards += stages[s].backward + routes[s].seconds;
    }
  }
  if (const auto& shared = costs.costs.shared_cores)  // never more work than on all of them
    least = std::max(least, all_passes * shared->ranks_at_once * shared->slowdown / shared->cores);
  return least + tail_seconds(costs.costs);
}

}  // namespace trestle::plan
