// What the core costs: making, lowering and simulating a schedule, which happens before a run.
#include <benchmark/benchmark.h>

#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/validate.h"
#include "trestle/simulate/simulate.h"

namespace {

using trestle::schedule::Schedule;

Schedule table(const benchmark::State& state) {
  return trestle::schedule::generate("1f1b", {.stages = static_cast<int>(state.range(0)),
                                              .micro_batches = static_cast<int>(state.range(1))});
}

void generate(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(table(state));
}

void validate(benchmark::State& state) {
  const Schedule schedule = table(state);
  for (auto _ : state) trestle::schedule::validate(schedule);
}

void lower(benchmark::State& state) {
  const Schedule schedule = table(state);
  for (auto _ : state) benchmark::DoNotOptimize(trestle::schedule::lower(schedule, {}));
}

void simulate(benchmark::State& state) {
  const Schedule schedule = trestle::schedule::lower(table(state), {});
  const auto costs = trestle::simulate::unit_costs(schedule.stages);
  for (auto _ : state) benchmark::DoNotOptimize(trestle::simulate::simulate(schedule, costs));
}

// Stages and micro-batches: a laptop's, a server's, a cluster's.
void sizes(benchmark::internal::Benchmark* of) {
  of->Args({2, 4})->Args({8, 32})->Args({32, 256})->Unit(benchmark::kMicrosecond);
}
BENCHMARK(generate)->Apply(sizes);
BENCHMARK(validate)->Apply(sizes);
BENCHMARK(lower)->Apply(sizes);
BENCHMARK(simulate)->Apply(sizes);

}  // namespace
