#include "trestle/schedule/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "trestle/schedule/routes.h"

namespace trestle::schedule {
namespace {

using testing::ElementsAre;

// Two ranks: 0F0 0F1 . 0B0, and 1F0 beside them.
Timeline small() {
  Timeline timeline;
  timeline.rank_count = 2;
  timeline.events = {
      {0, forward(0, 0), 1, 2},  {0, forward(0, 1), 2, 3}, {0, parse_action("0SEND_F1"), 3, 3.5},
      {0, backward(0, 0), 4, 6}, {1, forward(1, 0), 2, 3}, {1, weight_grad(1, 0), 3, 5}};
  return timeline;
}

TEST(Timeline, CountsOnlyComputationAsBusy) {
  EXPECT_DOUBLE_EQ(makespan(small()), 5);
  EXPECT_THAT(busy(small()), ElementsAre(4, 3));
}

TEST(Timeline, ReportsIdleTimeInBothDefinitions) {
  EXPECT_DOUBLE_EQ(idle_share_of_makespan(small()), 1 - 7.0 / 10);
  EXPECT_DOUBLE_EQ(idle_share_of_ideal(small()), 10.0 / 7 - 1);
}

TEST(Timeline, EndsActivationsWithBOrW) {
  EXPECT_THAT(peak_live_activations(small()), ElementsAre(2, 1));
}

TEST(Timeline, CountsEndsBeforeBeginsAtTheSameTime) {
  Timeline timeline;
  timeline.rank_count = 1;
  timeline.events = {{0, forward(0, 0), 0, 1},
                     {0, backward(0, 0), 1, 2},
                     {0, forward(0, 1), 2, 3},
                     {0, backward(0, 1), 3, 4}};
  EXPECT_THAT(peak_live_activations(timeline), ElementsAre(1));
}

TEST(Timeline, CountsBothHalvesOfAnOverlappedPair) {
  Timeline timeline;
  timeline.rank_count = 1;
  timeline.events = {{0, forward(0, 0), 0, 1},
                     {0, parse_action("(0F1;0B0)OVERLAP_F_B"), 1, 2},
                     {0, backward(0, 1), 2, 3}};
  EXPECT_THAT(peak_live_activations(timeline), ElementsAre(2));
}

TEST(Timeline, IndexFindsTheEventsOfAMicroBatch) {
  Timeline timeline;
  timeline.rank_count = 1;
  timeline.events = {{0, forward(2, 0), 0, 1},
                     {0, parse_action("2SEND_F0"), 1, 1},
                     {0, parse_action("(2F1;2B0)OVERLAP_F_B"), 1, 2},
                     {0, parse_action("2R1"), 2, 3},
                     {0, parse_action("2I1"), 3, 4},
                     {0, weight_grad(2, 1), 4, 5}};
  const EventIndex index(timeline);
  EXPECT_EQ(index.forward(2, 0), 0u);
  EXPECT_EQ(index.backward(2, 0), 2u);
  EXPECT_EQ(index.last_backward(2, 0), 2u);
  EXPECT_EQ(index.forward(2, 1), 2u);
  EXPECT_EQ(index.recompute(2, 1), 3u);
  EXPECT_EQ(index.backward(2, 1), 4u);
  EXPECT_EQ(index.weight_grad(2, 1), 5u);
  EXPECT_EQ(index.last_backward(2, 1), 5u);
  EXPECT_FALSE(index.weight_grad(2, 0));
  EXPECT_FALSE(index.recompute(2, 0));
  EXPECT_FALSE(index.forward(1, 0));
  EXPECT_FALSE(index.forward(3, 0));
  EXPECT_FALSE(index.forward(2, 2));
  EXPECT_FALSE(index.forward(-1, 0));
}

TEST(Timeline, KeepsActivationsWithoutABackwardAlive) {
  Timeline timeline;
  timeline.rank_count = 1;
  timeline.events = {{0, forward(0, 0), 1, 2}};
  const auto lives = activation_lives(timeline);
  ASSERT_EQ(lives.size(), 1u);
  EXPECT_EQ(lives[0].begin, 1);
  EXPECT_TRUE(std::isinf(lives[0].end));
}

TEST(Timeline, IsAllZeroIfEmpty) {
  Timeline empty;
  empty.rank_count = 1;
  EXPECT_EQ(makespan(empty), 0);
  EXPECT_EQ(idle_share_of_makespan(empty), 0);
  EXPECT_EQ(idle_share_of_ideal(empty), 0);
  EXPECT_THAT(peak_live_activations(empty), ElementsAre(0));
}

TEST(Timeline, MeasuredMessagesCrossUntilTheyAreUsed) {
  Timeline timeline;
  timeline.stages = 2;
  timeline.micro_batches = 1;
  timeline.rank_count = 2;
  timeline.rank_of_stage = {0, 1};
  timeline.routes = main_lane(2);
  timeline.events = {{0, parse_action("0SEND_F0"), 1, 1.1},
                     {1, parse_action("1RECV_F0"), 1, 2},
                     {1, parse_action("1REDUCE_GRAD"), 4, 5}};
  Timeline one_host = timeline;
  add_measured_crossings(&one_host, {0, 0});
  ASSERT_EQ(one_host.crossings.size(), 1);
  EXPECT_EQ(one_host.crossings[0].action, parse_action("1REDUCE_GRAD"));
  add_measured_crossings(&timeline, {0, 1});
  EXPECT_EQ(hosts_of(timeline), (std::vector<int>{0, 1}));
  ASSERT_EQ(timeline.crossings.size(), 2);
  EXPECT_EQ(timeline.crossings[0].host, 0);
  EXPECT_EQ(timeline.crossings[0].begin, 1);
  EXPECT_EQ(timeline.crossings[0].end, 2);
  EXPECT_EQ(timeline.crossings[1].host, 1);
}

}  // namespace
}  // namespace trestle::schedule
