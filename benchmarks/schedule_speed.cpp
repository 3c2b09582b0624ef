// Measures the core: generating, validating, lowering and simulating a schedule, all before a run.
// items_per_second is the number of actions of the lowered table per second.
#include <benchmark/benchmark.h>

#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/validate.h"
#include "trestle/simulate/simulate.h"

namespace {

using trestle::schedule::Schedule;
using trestle::simulate::Costs;

Schedule table(const benchmark::State& state) {
  return trestle::schedule::generate("1f1b", {.stages = static_cast<int>(state.range(0)),
                                              .micro_batches = static_cast<int>(state.range(1))});
}

Schedule lowered(const benchmark::State& state) {
  return trestle::schedule::lower(table(state), {});
}

void count_actions(benchmark::State& state, const Schedule& schedule) {
  std::size_t actions = 0;
  for (const auto& rank : schedule.ranks) actions += rank.size();
  state.SetItemsProcessed(static_cast<std::int64_t>(actions) * state.iterations());
}

void generate(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(table(state));
  count_actions(state, table(state));
}

void validate(benchmark::State& state) {
  const Schedule schedule = lowered(state);
  for (auto _ : state) trestle::schedule::validate(schedule);
  count_actions(state, schedule);
}

void lower(benchmark::State& state) {
  const Schedule schedule = table(state);
  for (auto _ : state) benchmark::DoNotOptimize(trestle::schedule::lower(schedule, {}));
  count_actions(state, lowered(state));
}

void simulate_with(benchmark::State& state, const Schedule& schedule, const Costs& costs) {
  for (auto _ : state) benchmark::DoNotOptimize(trestle::simulate::simulate(schedule, costs));
  count_actions(state, schedule);
}

void simulate_times(benchmark::State& state) {
  const Schedule schedule = lowered(state);
  simulate_with(state, schedule, trestle::simulate::unit_costs(schedule.stages));
}

void simulate_memory(benchmark::State& state) {
  const Schedule schedule = lowered(state);
  Costs costs = trestle::simulate::unit_costs(schedule.stages);
  for (auto& stage : costs.stages) {
    stage.saved = 300;
    stage.transient_forward = 50;
    stage.transient_backward = 90;
  }
  costs.routes.assign(schedule.routes.size(), {.seconds = 0.1, .bytes = 20});
  costs.transfer_mode = trestle::simulate::TransferMode::Pull;
  simulate_with(state, schedule, costs);
}

// Stages and micro-batches: a laptop's size, and tables of about 10,000, 100,000, 1.2 million and 6
// million lowered actions.
void sizes(benchmark::internal::Benchmark* of) {
  of->Args({2, 4})->Args({16, 104})->Args({64, 260})->Args({512, 400})->Args({1000, 1000});
  of->Unit(benchmark::kMillisecond);
}
BENCHMARK(generate)->Apply(sizes);
BENCHMARK(validate)->Apply(sizes);
BENCHMARK(lower)->Apply(sizes);
BENCHMARK(simulate_times)->Apply(sizes);
BENCHMARK(simulate_memory)->Apply(sizes);

}  // namespace
