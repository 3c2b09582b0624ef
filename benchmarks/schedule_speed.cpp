// Measures the core: generating, validating, lowering and simulating a schedule, all before a run.
// items_per_second is the number of actions of the lowered table per second, and that of the table
// itself for generating it. A name ends with the schedule, the ranks and the micro-batches.
#include <benchmark/benchmark.h>

#include <fstream>
#include <string>

#include "trestle/base/stopwatch.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/validate.h"
#include "trestle/simulate/simulate.h"

namespace {

using trestle::schedule::Schedule;
using trestle::simulate::Costs;

// Each rank has the number of stages that the schedule needs.
Schedule table(const benchmark::State& state, const std::string& name) {
  const int each = trestle::schedule::stages_per_rank(name, 0);
  return trestle::schedule::generate(name, {.stages = static_cast<int>(state.range(0)) * each,
                                            .micro_batches = static_cast<int>(state.range(1)),
                                            .stages_per_rank = each});
}

Schedule lowered(const benchmark::State& state, const std::string& name) {
  return trestle::schedule::lower(table(state, name), {});
}

std::int64_t actions_of(const Schedule& schedule) {
  std::size_t actions = 0;
  for (const auto& rank : schedule.ranks) actions += rank.size();
  return static_cast<std::int64_t>(actions);
}

void count_actions(benchmark::State& state, const Schedule& schedule) {
  state.SetItemsProcessed(actions_of(schedule) * state.iterations());
}

Costs costs_without_memory(const Schedule& schedule) {
  return trestle::simulate::unit_costs(schedule.stages);
}

Costs costs_with_memory(const Schedule& schedule) {
  Costs costs = costs_without_memory(schedule);
  for (auto& stage : costs.stages) {
    stage.saved = 300;
    stage.kept_for_weights = 100;
    stage.transient_forward = 50;
    stage.transient_backward = 90;
  }
  costs.routes.assign(schedule.routes.size(), {.seconds = 0.1, .bytes = 20});
  costs.transfer_mode = trestle::simulate::TransferMode::Pull;
  return costs;
}

// The most memory of this process so far that was resident.
double peak_bytes() {
  const std::string name = "VmHWM:";
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name)) return 1024 * std::stod(line.substr(name.size()));
  return 0;
}

void generate(benchmark::State& state, const std::string& name) {
  for (auto _ : state) benchmark::DoNotOptimize(table(state, name));
  count_actions(state, table(state, name));
}

void validate(benchmark::State& state, const std::string& name) {
  const Schedule schedule = lowered(state, name);
  for (auto _ : state) trestle::schedule::validate(schedule);
  count_actions(state, schedule);
}

void lower(benchmark::State& state, const std::string& name) {
  const Schedule schedule = table(state, name);
  for (auto _ : state) benchmark::DoNotOptimize(trestle::schedule::lower(schedule, {}));
  count_actions(state, lowered(state, name));
}

void simulate_with(benchmark::State& state, const Schedule& schedule, const Costs& costs) {
  for (auto _ : state) benchmark::DoNotOptimize(trestle::simulate::simulate(schedule, costs));
  count_actions(state, schedule);
}

void simulate_times(benchmark::State& state, const std::string& name) {
  const Schedule schedule = lowered(state, name);
  simulate_with(state, schedule, costs_without_memory(schedule));
}

void simulate_memory(benchmark::State& state, const std::string& name) {
  const Schedule schedule = lowered(state, name);
  simulate_with(state, schedule, costs_with_memory(schedule));
}

// All four, once. `peak_bytes` is that of the process: run one of these with --benchmark_filter.
template <class MakeCosts>
void whole(benchmark::State& state, const std::string& name, const MakeCosts& costs) {
  std::int64_t actions = 0;
  const auto timed = [&](const char* what, const auto& call) {
    const trestle::Stopwatch watch;
    auto result = call();
    state.counters[what] = watch.seconds();
    return result;
  };
  for (auto _ : state) {
    const Schedule schedule = [&] {
      const Schedule compute = timed("generate_seconds", [&] { return table(state, name); });
      return timed("lower_seconds", [&] { return trestle::schedule::lower(compute, {}); });
    }();
    actions = timed("validate_seconds", [&] {
      trestle::schedule::validate(schedule);
      return actions_of(schedule);
    });
    benchmark::DoNotOptimize(timed("simulate_seconds", [&] {
      return trestle::simulate::simulate(schedule, costs(schedule));
    }));
  }
  state.SetItemsProcessed(actions * state.iterations());
  state.counters["actions"] = static_cast<double>(actions);
  state.counters["peak_bytes"] = peak_bytes();
}

void whole_times(benchmark::State& state, const std::string& name) {
  whole(state, name, costs_without_memory);
}

void whole_memory(benchmark::State& state, const std::string& name) {
  whole(state, name, costs_with_memory);
}

// Ranks and micro-batches: a laptop's size, and tables of 1F1B of about 10,000, 100,000, 1.2
// million and 6 million lowered actions.
void sizes(benchmark::internal::Benchmark* of) {
  of->Args({2, 4})->Args({16, 104})->Args({64, 260})->Args({512, 400})->Args({1000, 1000});
  of->Unit(benchmark::kMillisecond);
}

void largest(benchmark::internal::Benchmark* of) {
  of->Args({16, 104})->Args({512, 4096})->Iterations(1)->Unit(benchmark::kSecond);
}

using Measure = void (*)(benchmark::State&, const std::string&);

benchmark::internal::Benchmark* add(const std::string& what, Measure measure,
                                    const std::string& schedule) {
  return benchmark::RegisterBenchmark(
      (what + "/" + schedule).c_str(),
      [measure, schedule](benchmark::State& state) { measure(state, schedule); });
}

[[maybe_unused]] const bool registered = [] {
  for (const std::string schedule : {"1f1b", "zb_h1", "zbv"}) {
    add("generate", generate, schedule)->Apply(sizes);
    add("validate", validate, schedule)->Apply(sizes);
    add("lower", lower, schedule)->Apply(sizes);
    add("simulate_times", simulate_times, schedule)->Apply(sizes);
    add("simulate_memory", simulate_memory, schedule)->Apply(sizes);
    add("whole_times", whole_times, schedule)->Apply(largest);
    add("whole_memory", whole_memory, schedule)->Apply(largest);
  }
  return true;
}();

}  // namespace
