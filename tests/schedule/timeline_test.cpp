#include "trestle/schedule/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  EXPECT_DOUBLE_EQ(busy(small(), 0), 4);
  EXPECT_DOUBLE_EQ(busy(small(), 1), 3);
}

TEST(Timeline, IdleHasTwoNames) {
  EXPECT_DOUBLE_EQ(idle_share_of_makespan(small()), 1 - 7.0 / 10);
  EXPECT_DOUBLE_EQ(idle_share_of_ideal(small()), 10.0 / 7 - 1);
}

TEST(Timeline, LiveActivationsEndWithBOrW) {
  EXPECT_THAT(peak_live_activations(small()), ElementsAre(2, 1));
}

TEST(Timeline, OneEndsBeforeAnotherBeginsAtTheSameTime) {
  Timeline timeline;
  timeline.rank_count = 1;
  timeline.events = {{0, forward(0, 0), 0, 1},
                     {0, backward(0, 0), 1, 2},
                     {0, forward(0, 1), 2, 3},
                     {0, backward(0, 1), 3, 4}};
  EXPECT_THAT(peak_live_activations(timeline), ElementsAre(1));
}

TEST(Timeline, AnOverlappedPairBeginsOneAndEndsAnother) {
  Timeline timeline;
  timeline.rank_count = 1;
  timeline.events = {{0, forward(0, 0), 0, 1},
                     {0, parse_action("(0F1;0B0)OVERLAP_F_B"), 1, 2},
                     {0, backward(0, 1), 2, 3}};
  EXPECT_THAT(peak_live_activations(timeline), ElementsAre(2));
}

TEST(Timeline, AnEmptyOneIsAllZero) {
  Timeline empty;
  empty.rank_count = 1;
  EXPECT_EQ(makespan(empty), 0);
  EXPECT_EQ(idle_share_of_makespan(empty), 0);
  EXPECT_EQ(idle_share_of_ideal(empty), 0);
  EXPECT_THAT(peak_live_activations(empty), ElementsAre(0));
}

}  // namespace
}  // namespace trestle::schedule
