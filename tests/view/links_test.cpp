#include "trestle/view/links.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/view/samples.h"

namespace trestle::view {
namespace {

using schedule::Kind;
using schedule::Timeline;

auto count(const std::vector<Link>& all, LinkKind kind) {
  return std::count_if(all.begin(), all.end(), [&](const Link& link) { return link.kind == kind; });
}

TEST(Links, OneForEachMessage) {
  const std::vector<Link> all = links(samples::gpipe_with_skips());
  EXPECT_EQ(count(all, LinkKind::Activation), 4);
  EXPECT_EQ(count(all, LinkKind::Gradient), 4);
  EXPECT_EQ(count(all, LinkKind::Skip), 8);
  EXPECT_EQ(count(all, LinkKind::SkipGradient), 8);
}

TEST(Links, RunFromTheProducersEndToTheConsumersBegin) {
  const Timeline timeline = samples::gpipe_with_skips();
  for (const Link& link : links(timeline)) {
    const auto& from = timeline.events[link.from];
    const auto& to = timeline.events[link.to];
    EXPECT_EQ(from.action.micro_batch, to.action.micro_batch);
    EXPECT_GE(link.departs, from.end - 1e-9);
    EXPECT_LE(link.departs, to.begin + 1e-9);
    const bool forward = link.kind == LinkKind::Activation || link.kind == LinkKind::Skip;
    EXPECT_EQ(from.action.kind, forward ? Kind::Forward : Kind::Backward);
    EXPECT_EQ(from.action.stage, forward ? 0 : 1);
    EXPECT_EQ(to.action.stage, forward ? 1 : 0);
  }
}

TEST(Links, IncludeSkipsWithinARank) {
  Timeline timeline = samples::by_hand();
  timeline.rank_count = 1;
  timeline.rank_of_stage = {0, 0, 0, 0};
  for (auto& event : timeline.events) event.rank = 0;
  timeline.routes = {{.from_stage = 0, .to_stage = 3, .skip = true, .name = "s"}};
  const std::vector<Link> all = links(timeline);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].kind, LinkKind::Skip);
  EXPECT_EQ(all[1].kind, LinkKind::SkipGradient);
}

TEST(Links, SkipMessagesWithoutBothEnds) {
  Timeline timeline = samples::by_hand();
  timeline.events.push_back(
      {.rank = 3, .action = {.kind = Kind::SendActivation, .stage = 3, .micro_batch = 0}});
  timeline.events.push_back(
      {.rank = 0, .action = {.kind = Kind::SendSkip, .stage = 0, .micro_batch = 0, .route = 7}});
  EXPECT_TRUE(links(timeline).empty());
}

}  // namespace
}  // namespace trestle::view
