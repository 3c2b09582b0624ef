#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/schedule/tables.h"
#include "trestle/base/text.h"
#include "trestle/schedule/csv.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/validate.h"
#include "trestle/simulate/simulate.h"

// Properties of every schedule, size, set of skips and recompute mode.
namespace trestle::simulate {
namespace {

using schedule::Action;
using schedule::Kind;
using schedule::LowerOptions;
using schedule::Recompute;
using schedule::Schedule;
using schedule::Timeline;

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int below(int limit) { return static_cast<int>(engine_() % static_cast<unsigned>(limit)); }

 private:
  std::mt19937 engine_;  // equal in all standard libraries, unlike distributions
};

LowerOptions random_options(int stages, Random* random) {
  LowerOptions options;
  std::vector<schedule::Route> skips;
  for (int i = random->below(5); stages > 1 && i > 0; --i) {
    const int from = random->below(stages - 1);
    const int to = from + 1 + random->below(stages - from - 1);
    skips.push_back({from, to, true, text("s", i)});
  }
  for (int stage = 0; stage < stages; ++stage) {
    options.recompute.push_back(static_cast<Recompute>(random->below(3)));
  }
  if (random->below(2) == 1) options.skip_send = schedule::SkipSend::JustInTime;
  // A stage may produce skips only, if something connects it to the other stages.
  if (random->below(4) == 0 && stages > 1) {
    const int gap = random->below(stages - 1);
    skips.push_back({gap, gap + 1, true, "bridge"});
    options.routes = schedule::tables::with_skips(stages, skips);
    options.routes->erase(options.routes->begin() + gap);
  } else if (random->below(4) > 0) {  // or lower() adds the main lane
    options.routes = schedule::tables::with_skips(stages, skips);
  }
  return options;
}

Costs random_costs(const Schedule& lowered, Random* random) {
  Costs costs = unit_costs(lowered.stages);
  for (StageCost& stage : costs.stages) {
    stage.forward = 1 + random->below(9);
    stage.backward = 1 + random->below(9);
    stage.saved = 1 + random->below(9);
    stage.kept_for_recompute = random->below(2);
    stage.persistent = 100;
  }
  for (std::size_t i = 0; i < lowered.routes.size(); ++i) {
    costs.routes.push_back({.seconds = 0.5 * random->below(4), .bytes = random->below(3)});
  }
  return costs;
}

// Each micro-batch crosses each route between ranks once in each direction, and every backward that
// the mode recomputes has its R.
void expect_counts(const Schedule& table, const Schedule& lowered, const LowerOptions& options) {
  std::map<Kind, int> count;
  std::map<Kind, int> before;
  for (const auto& actions : table.ranks) {
    for (const Action& action : actions) ++before[action.kind];
  }
  for (const auto& actions : lowered.ranks) {
    for (const Action& action : actions) ++count[action.kind];
  }
  int main = 0;
  int skips = 0;
  for (const auto& route : lowered.routes) {
    if (within_rank(lowered, route)) continue;
    ++(route.skip ? skips : main);
  }
  const int each = table.micro_batches;
  for (const Kind kind :
       {Kind::SendActivation, Kind::RecvActivation, Kind::SendGradient, Kind::RecvGradient}) {
    EXPECT_EQ(count[kind], main * each);
  }
  for (const Kind kind :
       {Kind::SendSkip, Kind::RecvSkip, Kind::SendSkipGradient, Kind::RecvSkipGradient}) {
    EXPECT_EQ(count[kind], skips * each);
  }
  int recomputed = 0;
  for (const Recompute mode : options.recompute) {
    recomputed += mode == Recompute::Never ? 0 : each - (mode == Recompute::ExceptLast ? 1 : 0);
  }
  EXPECT_EQ(count[Kind::Recompute], recomputed);
  for (const Kind kind : {Kind::Forward, Kind::Backward, Kind::InputGrad, Kind::WeightGrad}) {
    EXPECT_EQ(count[kind], before[kind]);
  }
}

void expect_sound(const Timeline& timeline, const Schedule& lowered) {
  std::map<int, double> busy_until;
  for (const auto& event : timeline.events) {
    EXPECT_LE(event.begin, event.end);
    if (!is_compute(event.action.kind)) continue;
    EXPECT_GE(event.begin, busy_until[event.rank]);
    busy_until[event.rank] = event.end;
  }
  std::size_t actions = 0;
  for (const auto& of_rank : lowered.ranks) actions += of_rank.size();
  EXPECT_EQ(timeline.events.size(), actions);
  ASSERT_EQ(timeline.peak_bytes.size(), lowered.ranks.size());
  Bytes last = -1;
  for (std::size_t i = 0; i < timeline.memory.size(); ++i) {
    const auto& sample = timeline.memory[i];
    EXPECT_GE(sample.bytes, 0);
    EXPECT_LE(sample.bytes, timeline.peak_bytes[static_cast<std::size_t>(sample.rank)]);
    const bool end = i + 1 == timeline.memory.size() || timeline.memory[i + 1].rank != sample.rank;
    if (end) last = sample.bytes;  // only persistent bytes remain at the end
    if (end) {
      Bytes persistent = 0;
      for (const int rank : lowered.rank_of_stage) persistent += rank == sample.rank ? 100 : 0;
      EXPECT_EQ(last, persistent);
    }
  }
}

// A network without delays changes nothing, however the stages lie on hosts. Only receives, which
// take no time, may be at another moment: a rank fetches few messages ahead.
void expect_equal_over_fast_network(const Schedule& lowered, Costs costs, Random* random) {
  for (RouteCost& route : costs.routes) route.seconds = 0;
  for (const TransferMode mode : {TransferMode::Push, TransferMode::Prefetch}) {
    costs.transfer_mode = mode;
    costs.network.reset();
    const Timeline without = simulate(lowered, costs);
    costs.network.emplace(Network{.link = {}, .hosts = {{}, {}}});
    for (auto& row : costs.network->hosts)
      for (int stage = 0; stage < lowered.stages; ++stage) row.push_back(random->below(3));
    const Timeline with = simulate(lowered, costs);
    const auto own = [](const Timeline& timeline) {
      std::vector<std::tuple<int, std::string, double, double>> events;
      for (const auto& event : timeline.events)
        if (!is_receive(event.action.kind))
          events.emplace_back(event.rank, to_string(event.action), event.begin, event.end);
      std::sort(events.begin(), events.end());
      return events;
    };
    EXPECT_EQ(own(with), own(without));
  }
}

void check(const Schedule& table, unsigned seed) {
  SCOPED_TRACE(text(table.name, ", ", table.stages, " stages, ", table.micro_batches,
                    " micro-batches, seed ", seed));
  Random random(seed);
  const LowerOptions options = random_options(table.stages, &random);
  ASSERT_NO_THROW(validate(table));
  const Schedule lowered = lower(table, options);
  ASSERT_NO_THROW(validate(lowered));
  expect_counts(table, lowered, options);
  EXPECT_EQ(schedule::parse_csv(to_csv(lowered), lowered.name), lowered);
  EXPECT_EQ(schedule::parse_csv(to_csv(table), table.name), table);
  const Costs costs = random_costs(lowered, &random);
  expect_sound(simulate(lowered, costs), lowered);
  expect_equal_over_fast_network(lowered, costs, &random);
}

TEST(EverySchedule, FromGenerators) {
  unsigned seed = 0;
  for (const auto& info : schedule::known_schedules()) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
        check(schedule::tables::table_on_ranks(info, ranks, micro_batches), ++seed);
        if (info.all_forwards_first)
          check(schedule::tables::table_on_ranks(info, ranks, micro_batches, 1,
                                                 schedule::BackwardOrder::Forward),
                ++seed);
        if (info.stages_per_rank == 0 && micro_batches % ranks == 0)
          check(schedule::tables::table_on_ranks(info, ranks, micro_batches, 3), ++seed);
      }
    }
  }
}

TEST(EverySchedule, WithSeveralStagesOnARank) {
  unsigned seed = 1000;
  for (const auto placement :
       {schedule::tables::Placement::Looped, schedule::tables::Placement::V}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int micro_batches = 1; micro_batches <= 8; ++micro_batches) {
        check(schedule::tables::two_stages_per_rank(placement, ranks, micro_batches), ++seed);
      }
    }
  }
}

TEST(EverySchedule, SixtyFourStages) {
  check(schedule::generate("1f1b", {.stages = 64, .micro_batches = 65}), 3000);
}

}  // namespace
}  // namespace trestle::simulate
