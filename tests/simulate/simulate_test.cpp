#include "trestle/simulate/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/schedule/tables.h"
#include "tests/simulate/event_of.h"
#include "trestle/base/error.h"
#include "trestle/schedule/csv.h"
#include "trestle/schedule/data_parallel.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"

namespace trestle::simulate {
namespace {

using schedule::Event;
using schedule::LowerOptions;
using schedule::Recompute;
using schedule::Schedule;
using schedule::Timeline;
using testing::HasSubstr;

Schedule gpipe(int stages, int micro_batches) {
  return schedule::generate("gpipe", {.stages = stages,
                                      .micro_batches = micro_batches,
                                      .backward_order = schedule::BackwardOrder::Forward});
}

TEST(Simulate, UsesTheTimesOfEachStage) {
  Costs costs;
  costs.stages = {{.forward = 2, .backward = 5}, {.forward = 3, .backward = 7}};
  const Timeline timeline = simulate(lower(gpipe(2, 1), {}), costs);
  EXPECT_EQ(event_of(timeline, "0F0").end, 2);
  EXPECT_EQ(event_of(timeline, "1F0").begin, 2);
  EXPECT_EQ(event_of(timeline, "1B0").begin, 5);
  EXPECT_EQ(event_of(timeline, "0B0").begin, 12);
  EXPECT_EQ(makespan(timeline), 17);
  EXPECT_EQ(timeline.title, "simulated gpipe");
}

TEST(Simulate, TransfersTakeTimeWithoutBlockingRanks) {
  const Schedule lowered = lower(gpipe(2, 2), {});
  Costs costs = unit_costs(2);
  costs.routes = {{.seconds = 0.25}};
  const Timeline timeline = simulate(lowered, costs);
  EXPECT_EQ(event_of(timeline, "0SEND_F0").begin, 1);
  EXPECT_EQ(event_of(timeline, "0SEND_F0").end, 1);
  EXPECT_EQ(event_of(timeline, "0F1").begin, 1);  // not delayed
  EXPECT_EQ(event_of(timeline, "1RECV_F0").begin, 1.25);
  EXPECT_EQ(event_of(timeline, "1F0").begin, 1.25);
  EXPECT_EQ(event_of(timeline, "0RECV_B0").begin, 1.25 + 4 + 0.25);
}

// The value delays the first F of the copy's stage, the gradient the last B of the owner's.
TEST(Simulate, WaitsForTiedParameters) {
  Costs costs = unit_costs(2);
  costs.ties = {{.owner = 0, .copy = 1, .bytes = 8, .seconds = 3}};
  const Timeline timeline = simulate(lower(gpipe(2, 2), {}), costs);
  EXPECT_EQ(event_of(timeline, "1F0").begin, 3);
  EXPECT_EQ(event_of(timeline, "1B1").end, 9);
  EXPECT_EQ(event_of(timeline, "0B0").begin, 7);
  EXPECT_EQ(event_of(timeline, "0B1").begin, 9 + 3);
  costs.ties = {{.owner = 1, .copy = 0, .bytes = 8, .seconds = 3}};
  const Timeline later = simulate(lower(gpipe(2, 2), {}), costs);
  EXPECT_EQ(event_of(later, "0F0").begin, 3);
  EXPECT_EQ(event_of(later, "0B1").end, 3 + 9);
  costs.ties[0].copy = 2;
  EXPECT_THROW(simulate(lower(gpipe(2, 2), {}), costs), UsageError);
}

// The copy's last W follows work that needs the owner's rank: the gradient arrives at the end.
TEST(Simulate, TiedParametersDoNotStopARankThatOthersNeed) {
  Costs one_rank = unit_costs(2);
  one_rank.ties = {{.owner = 0, .copy = 1}};
  const auto table = lower(schedule::parse_csv("0F0,1F0,1I0,0B0,1W0\n"), {});
  EXPECT_EQ(makespan(simulate(table, one_rank)), 1 + 1 + 1 + 2 + 1);
  Costs looped = unit_costs(9);
  looped.ties = {{.owner = 6, .copy = 8}};
  const auto loop =
      lower(schedule::generate("interleaved_zero_bubble",
                               {.stages = 9, .micro_batches = 1, .stages_per_rank = 3}),
            {});
  const double alone = makespan(simulate(loop, unit_costs(9)));
  EXPECT_EQ(makespan(simulate(loop, looped)), alone);
  // Replicas reduce the owner's gradients while its last W runs.
  EXPECT_THROW(simulate(add_reductions(loop), looped), UsageError);
}

TEST(Simulate, OrdersEventsOfEachRank) {
  const Timeline timeline = simulate(
      lower(schedule::generate("1f1b", {.stages = 3, .micro_batches = 5}), {}), unit_costs(3));
  for (std::size_t i = 1; i < timeline.events.size(); ++i) {
    const Event& before = timeline.events[i - 1];
    const Event& now = timeline.events[i];
    EXPECT_TRUE(before.rank < now.rank || (before.rank == now.rank && before.begin <= now.begin));
  }
}

TEST(Simulate, UsesTheGraphlessTimeForRecomputedForwards) {
  Costs costs;
  costs.stages = {{.forward = 2, .backward = 4, .recompute = 3, .forward_no_graph = 1}};
  const Timeline timeline =
      simulate(lower(gpipe(1, 2), {.recompute = {Recompute::ExceptLast}}), costs);
  EXPECT_EQ(event_of(timeline, "0F0").end, 1);
  EXPECT_EQ(event_of(timeline, "0F1").end, 3);
  EXPECT_EQ(event_of(timeline, "0R0").end, 6);
  EXPECT_EQ(makespan(timeline), 14);
}

TEST(Simulate, ShowsASlowLinkWithALateSkip) {
  // Sent at once, the skip arrives while the main lane is still in flight.
  LowerOptions options{.routes = schedule::tables::with_skips(5, {{0, 4, true, "s"}})};
  const auto run = [&](schedule::SkipSend when) {
    options.skip_send = when;
    const Schedule lowered = lower(gpipe(5, 8), options);
    Costs costs = unit_costs(5);
    costs.routes.resize(lowered.routes.size());
    costs.routes.back().seconds = 2;
    return event_of(simulate(lowered, costs), "4F0").begin;
  };
  EXPECT_EQ(run(schedule::SkipSend::Eager), 4);
  EXPECT_EQ(run(schedule::SkipSend::JustInTime), 6);
}

TEST(Simulate, TransfersNothingWithinARank) {
  const Schedule lowered =
      lower(schedule::tables::two_stages_per_rank(schedule::tables::Placement::V, 2, 1), {});
  Costs costs = unit_costs(4);
  costs.routes.assign(3, {.seconds = 10});
  const Timeline timeline = simulate(lowered, costs);
  EXPECT_EQ(event_of(timeline, "1F0").end, 12);
  EXPECT_EQ(event_of(timeline, "2F0").begin, 12);  // the same rank: no transfer
  EXPECT_EQ(event_of(timeline, "3F0").begin, 23);
}

TEST(Simulate, KeepsThePlaceOfOtherActions) {
  Costs costs = unit_costs(1);
  costs.stages[0].step = 5;
  const Timeline timeline = simulate(
      schedule::tables::from_rows({"0UNSHARD 0F0 0I0 0W0 0REDUCE_GRAD 0NORM 0STEP"}), costs);
  EXPECT_EQ(event_of(timeline, "0UNSHARD").end, 0);
  EXPECT_EQ(event_of(timeline, "0STEP").begin, 3);
  EXPECT_EQ(makespan(timeline), 8);
}

TEST(Simulate, StepsWaitForTheNormsOfAllRanks) {
  Costs costs = unit_costs(3);
  costs.stages[0].norm = 1;
  costs.stages[1].norm = 0.5;  // on rank 1, with stage 2
  costs.stages[2].norm = 0.25;
  costs.stages[1].step = 2;
  costs.stages[2].step = 4;
  for (auto& stage : costs.stages) stage.gradients = 10;
  const Schedule table =
      schedule::tables::from_rows({"0F0 0SEND_F0 0RECV_B0 0B0 0NORM 0STEP",
                                   "1RECV_F0 1F0 2F0 2B0 1B0 1SEND_B0 1NORM 2STEP 1STEP"});
  for (const Concurrency concurrency : {Concurrency::EachRank, Concurrency::OneThread}) {
    costs.concurrency = concurrency;
    const Timeline timeline = simulate(table, costs);
    EXPECT_EQ(event_of(timeline, "1NORM").begin, 7);
    EXPECT_EQ(event_of(timeline, "1NORM").end, 7.75);
    const double all = event_of(timeline, "0NORM").end;
    EXPECT_GE(all, 10);  // 0B0 ends at 9
    EXPECT_EQ(event_of(timeline, "0STEP").begin, all);
    EXPECT_EQ(event_of(timeline, "2STEP").begin, all);
    EXPECT_EQ(event_of(timeline, "1STEP").begin, all + 4);
    EXPECT_EQ(makespan(timeline), all + 6);
    // A stage's gradients are freed at its STEP.
    EXPECT_EQ(timeline.memory.back().bytes, 0);
  }
}

TEST(Simulate, RunsAnOverlappedPairSequentially) {
  const Schedule lowered = lower(schedule::tables::from_rows({"0F0 (0F1;0B0)OVERLAP_F_B 0B1"}), {});
  EXPECT_EQ(makespan(simulate(lowered, unit_costs(1))), 1 + 3 + 2);
}

std::string error_of(const Schedule& schedule, const Costs& costs) {
  try {
    simulate(schedule, costs);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Simulate, RejectsInvalidInput) {
  const Schedule lowered = lower(gpipe(2, 1), {});
  EXPECT_THAT(error_of(gpipe(2, 1), unit_costs(2)), HasSubstr("lower()"));
  EXPECT_THAT(error_of(lowered, unit_costs(3)), HasSubstr("3 stages"));
  Costs costs = unit_costs(2);
  costs.routes.resize(2);
  EXPECT_THAT(error_of(lowered, costs), HasSubstr("2 routes"));
}

TEST(Simulate, ReportsWhereATableGetsStuck) {
  const std::string crossed = error_of(
      schedule::tables::from_rows({"0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1B0 1SEND_B0 1F1"}),
      unit_costs(2));
  EXPECT_THAT(crossed, HasSubstr("waits for ever before 1F1"));
  EXPECT_THAT(crossed, HasSubstr(">1F1<"));
  EXPECT_THAT(error_of(schedule::tables::from_rows({"0F0 0SEND_F0 0RECV_B0", "1RECV_F0 1F0"}),
                       unit_costs(2)),
              HasSubstr("no message is ever sent to 0RECV_B0"));
}

// Rank by rank, each as far as it gets: 0F0 0F1 1F0 1F1 1B1 1B0 0B1 0B0.
TEST(Simulate, OneThreadRunsOneActionAtATime) {
  Costs costs = unit_costs(2);
  costs.concurrency = Concurrency::OneThread;
  const Timeline timeline =
      simulate(lower(schedule::generate("gpipe", {.stages = 2, .micro_batches = 2}), {}), costs);
  EXPECT_EQ(event_of(timeline, "0F1").end, 2);
  EXPECT_EQ(event_of(timeline, "1F0").begin, 2);
  EXPECT_EQ(event_of(timeline, "1B1").begin, 4);
  EXPECT_EQ(event_of(timeline, "0B1").begin, 8);
  EXPECT_EQ(makespan(timeline), 12);
}

TEST(Simulate, RejectsInvalidTimes) {
  const Schedule lowered = lower(gpipe(2, 1), {});
  for (const double bad : {1e308, -1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
    Costs costs = unit_costs(2);
    costs.stages[1].backward = bad;
    EXPECT_THROW(simulate(lowered, costs), UsageError) << bad;
    costs = unit_costs(2);
    costs.routes = {{.seconds = bad}};
    EXPECT_THROW(simulate(lowered, costs), UsageError) << bad;
  }
}

TEST(Simulate, RejectsAnIncompleteTable) {
  Schedule tiny = lower(gpipe(1, 1), {});
  tiny.micro_batches = 1 << 30;
  EXPECT_THROW(simulate(tiny, unit_costs(1)), UsageError);
  Schedule outside = lower(gpipe(1, 1), {});
  outside.ranks[0][1].micro_batch = 5;
  EXPECT_THROW(simulate(outside, unit_costs(1)), UsageError);
}

// torchgpipe's clock: in tick k every stage j runs the forward of micro-batch k - j, if it exists.
TEST(Simulate, T139ForwardsFollowTorchgpipesClock) {
  using Tick = std::vector<std::pair<int, int>>;  // (micro-batch, stage)
  struct Case {
    int micro_batches, stages;
    std::vector<Tick> ticks;
  };
  const Case cases[] = {
      {1, 1, {{{0, 0}}}},
      {1, 3, {{{0, 0}}, {{0, 1}}, {{0, 2}}}},
      {3, 1, {{{0, 0}}, {{1, 0}}, {{2, 0}}}},
      {3, 3, {{{0, 0}}, {{1, 0}, {0, 1}}, {{2, 0}, {1, 1}, {0, 2}}, {{2, 1}, {1, 2}}, {{2, 2}}}},
      {4, 2, {{{0, 0}}, {{1, 0}, {0, 1}}, {{2, 0}, {1, 1}}, {{3, 0}, {2, 1}}, {{3, 1}}}}};
  for (const Case& test : cases) {
    SCOPED_TRACE(std::to_string(test.micro_batches) + ", " + std::to_string(test.stages));
    const auto table =
        schedule::generate("gpipe", {.stages = test.stages, .micro_batches = test.micro_batches});
    const auto timeline = simulate(schedule::lower(table, {}), unit_costs(test.stages));
    std::vector<Tick> ticks(test.ticks.size());
    for (const auto& event : timeline.events) {  // rank 0 first
      if (event.action.kind != schedule::Kind::Forward) continue;
      EXPECT_EQ(event.end, event.begin + 1);
      const auto tick = static_cast<std::size_t>(event.begin);
      ASSERT_EQ(event.begin, static_cast<double>(tick));
      ASSERT_LT(tick, ticks.size());
      ticks[tick].emplace_back(event.action.micro_batch, event.action.stage);
    }
    for (auto& tick : ticks)
      std::sort(tick.begin(), tick.end(),
                [](const auto& a, const auto& b) { return a.second < b.second; });
    EXPECT_EQ(ticks, test.ticks);
  }
}

}  // namespace
}  // namespace trestle::simulate
