#include "trestle/plan/search/step_prediction.h"

#include <algorithm>
#include <cstddef>

#include "trestle/schedule/data_parallel.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/optimizer_steps.h"
#include "trestle/schedule/validate.h"
#include "trestle/simulate/simulate.h"

namespace trestle::plan {
namespace {

// The seconds of one micro-batch. The next stage's backward waits for `before_next` of them.
struct Pass {
  double forward = 0, before_next = 0, weights = 0;
  double all() const { return forward + before_next + weights; }
};

Pass pass_of(const simulate::StageCost& stage, bool splits_backward) {
  if (!splits_backward) return {stage.forward, stage.backward, 0};
  return {stage.forward, stage.input_grad, stage.weight_grad};
}

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
  const auto& stages = costs.costs.stages;
  const bool splits = schedule::splits_backward(table);
  const auto of_rank = [&](std::size_t rank, const auto& of_stage) {
    double sum = 0;
    for (std::size_t s = 0; s < stages.size(); ++s)
      if (timeline.rank_of_stage.at(s) == static_cast<int>(rank)) sum += of_stage(s);
    return sum;
  };
  const auto passes = [&](std::size_t rank) {
    return of_rank(rank, [&](std::size_t s) { return pass_of(stages[s], splits).all(); });
  };
  std::size_t slowest = 0;
  for (std::size_t rank = 1; rank < static_cast<std::size_t>(timeline.rank_count); ++rank)
    if (passes(rank) > passes(slowest)) slowest = rank;
  const double busy = schedule::busy(timeline)[slowest];  // recomputed forwards count too
  if (chunks > 1) {
    const double fill = std::max(prediction.seconds - busy - tail_seconds(costs.costs), 0.0);
    prediction.seconds -= fill * (1 - 1.0 / chunks);
  }
  prediction.slowest_stage = static_cast<int>(slowest);
  const auto of_slowest = [&](const std::vector<double>& seconds) {
    return seconds.empty() ? 0 : of_rank(slowest, [&](std::size_t s) { return seconds[s]; });
  };
  const double reduces = of_rank(slowest, [&](std::size_t s) { return stages[s].reduce; });
  const double updates =
      of_rank(slowest, [&](std::size_t s) { return stages[s].norm + stages[s].step; });
  const double inside = of_slowest(costs.tensor_messages), data = of_slowest(costs.data_messages);
  const double update = of_slowest(costs.update_messages);
  // The data group's `reduce` and its part of `step` are outside of F and B.
  const double beside_passes = data - reduces - update;
  prediction.exposed = inside + data;
  prediction.compute = busy - inside - std::max(beside_passes, 0.0);
  prediction.optimizer = updates - update;
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
  const bool splits = costs.table && schedule::splits_backward(*costs.table);
  const auto rank_of = [&](std::size_t s) {
    return costs.table ? static_cast<std::size_t>(costs.table->rank_of_stage.at(s)) : s;
  };
  struct Rank {
    bool begins = false;
    double forwards = 0, backwards = 0;  // those of the stages before its first one
    double chain = 0, passes = 0;        // its own actions without W, and all its actions
  };
  std::vector<Rank> ranks(stages.size());
  double forwards = 0, backwards = 0, all_passes = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Pass pass = pass_of(stages[s], splits);
    Rank& rank = ranks[rank_of(s)];
    if (!rank.begins) rank = {.begins = true, .forwards = forwards, .backwards = backwards};
    const auto count = static_cast<double>(micro_batches);
    rank.chain += count * (pass.forward + pass.before_next);
    rank.passes += count * pass.all();
    all_passes += count * pass.all();
    if (s >= routes.size()) continue;
    const bool sends = s + 1 < stages.size() && rank_of(s) != rank_of(s + 1);
    forwards += pass.forward + (sends ? routes[s].seconds : 0);
    backwards += pass.before_next + (sends ? routes[s].seconds : 0);
  }
  double least = 0;
  for (const Rank& rank : ranks)
    least = std::max({least, rank.forwards / chunks + rank.passes,
                      (rank.forwards + rank.backwards) / chunks + rank.chain});
  if (const auto& shared = costs.costs.shared_cores)  // never more work than on all of them
    least = std::max(least, all_passes * shared->ranks_at_once * shared->slowdown / shared->cores);
  // W of the first stage need not be its last action.
  return least + (splits ? longest_update(costs.costs) : tail_seconds(costs.costs));
}

}  // namespace trestle::plan
