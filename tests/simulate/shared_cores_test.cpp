#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/simulate/event_of.h"
#include "trestle/base/error.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/optimizer_steps.h"
#include "trestle/simulate/simulate.h"

namespace trestle::simulate {
namespace {

using schedule::Schedule;
using schedule::Timeline;
using testing::HasSubstr;

Schedule table_of(const std::string& name, int stages, int micro_batches) {
  return lower(schedule::generate(name, {.stages = stages, .micro_batches = micro_batches}), {});
}

Costs on_cores(Costs costs, const SharedCores& shared) {
  costs.shared_cores = shared;
  return costs;
}

void expect_equal_times(const Timeline& shared, const Timeline& own) {
  ASSERT_EQ(shared.events.size(), own.events.size());
  for (std::size_t i = 0; i < own.events.size(); ++i) {
    EXPECT_EQ(shared.events[i].action, own.events[i].action);
    EXPECT_NEAR(shared.events[i].begin, own.events[i].begin, 1e-9);
    EXPECT_NEAR(shared.events[i].end, own.events[i].end, 1e-9);
  }
}

// gpipe, two stages with F = 1 and B = 2, two micro-batches, one core. 0F0 runs alone until 1. Then
// 0F1 and 1F0 share the core until 3. 1F1 has it until 4, 1B0 (or the later one that the table has
// first) until 6. The two last backwards of the stages share it until 10, and the last one of stage
// 0 runs alone until 12: all work, 12, without idle time.
TEST(SharedCores, OneCoreIsNeverIdle) {
  const Timeline timeline =
      simulate(table_of("gpipe", 2, 2), on_cores(unit_costs(2), {.cores = 1}));
  EXPECT_EQ(event_of(timeline, "0F0").end, 1);
  EXPECT_EQ(event_of(timeline, "0F1").begin, 1);
  EXPECT_EQ(event_of(timeline, "0F1").end, 3);
  EXPECT_EQ(event_of(timeline, "1F0").begin, 1);
  EXPECT_EQ(event_of(timeline, "1F0").end, 3);
  EXPECT_EQ(event_of(timeline, "1F1").end, 4);
  EXPECT_EQ(makespan(timeline), 12);
}

// Stage 0 takes 3 for F and stage 1 takes 1. From 3 on, 0F1 and 1F0 share one core: 1F0 has done
// its work of 1 at 5, and 0F1 then has 2 of its 3 left.
TEST(SharedCores, TheRestOfALongActionRunsAlone) {
  Costs costs = unit_costs(2);
  costs.stages[0].forward = 3;
  const Timeline timeline = simulate(table_of("gpipe", 2, 2), on_cores(costs, {.cores = 1}));
  EXPECT_EQ(event_of(timeline, "1F0").begin, 3);
  EXPECT_EQ(event_of(timeline, "1F0").end, 5);
  EXPECT_EQ(event_of(timeline, "0F1").begin, 3);
  EXPECT_EQ(event_of(timeline, "0F1").end, 7);
  EXPECT_EQ(event_of(timeline, "1F1").end, 8);
}

// Three stages on two cores: at 2 the actions 0F2, 1F1 and 2F0 begin, and each has two thirds of a
// core.
TEST(SharedCores, ThreeActionsShareTwoCores) {
  const Timeline timeline =
      simulate(table_of("gpipe", 3, 4), on_cores(unit_costs(3), {.cores = 2}));
  EXPECT_EQ(event_of(timeline, "0F1").end, 2);
  for (const char* action : {"0F2", "1F1", "2F0"}) {
    EXPECT_EQ(event_of(timeline, action).begin, 2);
    EXPECT_NEAR(event_of(timeline, action).end, 3.5, 1e-12);
  }
}

// A message takes its own time, on no core. 0F1 is alone until the message of 0F0 arrives at 1.5,
// then half of it is left, and both share the core until 2.5.
TEST(SharedCores, MessagesTakeTheirOwnTime) {
  Costs costs = unit_costs(2);
  costs.routes = {{.seconds = 0.5}};
  const Timeline timeline = simulate(table_of("gpipe", 2, 2), on_cores(costs, {.cores = 1}));
  EXPECT_EQ(event_of(timeline, "1RECV_F0").begin, 1.5);
  EXPECT_EQ(event_of(timeline, "1F0").begin, 1.5);
  EXPECT_EQ(event_of(timeline, "0F1").end, 2.5);
  EXPECT_EQ(event_of(timeline, "1F0").end, 3);
}

// Four replicas on two cores: all takes twice as long. With a slowdown of 1.5 it takes three times
// as long. On eight cores the four ranks are 3/7 of the way to it.
TEST(SharedCores, ReplicasRunEachActionAtOnce) {
  const Schedule table = table_of("gpipe", 1, 3);
  const auto seconds = [&](const SharedCores& shared) {
    return makespan(simulate(table, on_cores(unit_costs(1), shared)));
  };
  EXPECT_EQ(seconds({.cores = 2, .ranks_at_once = 4}), 18);
  EXPECT_NEAR(seconds({.cores = 2, .ranks_at_once = 4, .slowdown = 1.5}), 27, 1e-9);
  EXPECT_NEAR(seconds({.cores = 8, .ranks_at_once = 4, .slowdown = 1.5}), 9 * (1 + 0.5 * 3 / 7),
              1e-9);
  EXPECT_EQ(seconds({.cores = 8, .slowdown = 1.5}), 9);  // one action alone
}

// The stages of a process without devices take turns: one action runs at a time.
TEST(SharedCores, OneThreadSharesWithOtherReplicas) {
  Costs costs = unit_costs(2);
  costs.concurrency = Concurrency::OneThread;
  const Schedule table = table_of("gpipe", 2, 2);
  EXPECT_EQ(makespan(simulate(table, on_cores(costs, {.cores = 1}))), 12);
  EXPECT_EQ(makespan(simulate(table, on_cores(costs, {.cores = 1, .ranks_at_once = 2}))), 24);
}

TEST(SharedCores, EnoughCoresChangeNothing) {
  for (const char* name : {"gpipe", "1f1b"})
    for (const int stages : {1, 3, 4}) {
      SCOPED_TRACE(name + std::to_string(stages));
      const Schedule table = schedule::add_optimizer_steps(table_of(name, stages, 5));
      Costs costs = unit_costs(stages);
      for (std::size_t s = 0; s < costs.stages.size(); ++s) {
        costs.stages[s].forward = 1 + 0.3 * static_cast<double>(s);
        costs.stages[s].norm = 0.2;
        costs.stages[s].step = 0.4;
      }
      costs.routes.assign(table.routes.size(), {.seconds = 0.15});
      expect_equal_times(simulate(table, on_cores(costs, {.cores = 4, .slowdown = 1})),
                         simulate(table, costs));
    }
}

// No core is idle while an action could run, and none does more than one core's work.
TEST(SharedCores, TakeAtLeastTheWorkOverTheCores) {
  for (const char* name : {"gpipe", "1f1b"})
    for (const double cores : {1.0, 2.0, 3.0}) {
      SCOPED_TRACE(name + std::to_string(cores));
      const Schedule table = table_of(name, 4, 6);
      const double alone = makespan(simulate(table, unit_costs(4)));
      const double shared = makespan(simulate(table, on_cores(unit_costs(4), {.cores = cores})));
      const double work = 4 * 6 * 3;
      EXPECT_GE(shared, std::max(alone, work / cores) - 1e-9);
      EXPECT_LE(shared, alone + work / cores);
      if (cores == 1) {
        EXPECT_NEAR(shared, work, 1e-9);
      }
    }
}

TEST(SharedCores, AStuckScheduleIsNamed) {
  Schedule table = table_of("gpipe", 2, 1);
  std::erase_if(table.ranks[0], [](const auto& action) { return is_send(action.kind); });
  try {
    simulate(table, on_cores(unit_costs(2), {.cores = 1}));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("gets stuck"));
  }
}

TEST(SharedCores, InvalidNumbersAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<SharedCores> invalid = {{.cores = 0},      {.cores = nan},
                                            {.cores = 1e10},   {.ranks_at_once = 0.5},
                                            {.slowdown = 0.9}, {.cores = 2, .slowdown = 2.1},
                                            {.slowdown = nan}};
  for (const SharedCores& shared : invalid)
    EXPECT_THROW(simulate(table_of("gpipe", 2, 1), on_cores(unit_costs(2), shared)), UsageError);
  Costs costs = on_cores(unit_costs(2), {.cores = 2});
  costs.network = Network{.link = {}, .hosts = {{0, 1}}};
  EXPECT_THROW(simulate(table_of("gpipe", 2, 1), costs), UsageError);
}

}  // namespace
}  // namespace trestle::simulate
