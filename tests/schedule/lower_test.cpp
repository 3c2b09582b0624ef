#include "trestle/schedule/lower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/schedule/tables.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/validate.h"

namespace trestle::schedule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string row(const Schedule& schedule, std::size_t rank) {
  std::vector<std::string> cells;
  for (const Action& action : schedule.ranks.at(rank)) cells.push_back(to_string(action));
  return join(cells, " ");
}

std::size_t index_of(const Schedule& schedule, std::size_t rank, std::string_view text) {
  const auto& actions = schedule.ranks.at(rank);
  const auto found = std::find(actions.begin(), actions.end(), parse_action(text));
  EXPECT_NE(found, actions.end()) << text << " is not in " << row(schedule, rank);
  return static_cast<std::size_t>(found - actions.begin());
}

Schedule gpipe(int stages, int micro_batches) {
  return generate(
      "gpipe",
      {.stages = stages, .micro_batches = micro_batches, .backward_order = BackwardOrder::Forward});
}

TEST(Lower, GPipeOnTwoRanks) {
  const Schedule schedule = lower(gpipe(2, 2), {});
  EXPECT_EQ(row(schedule, 0), "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1");
  EXPECT_EQ(row(schedule, 1), "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1");
  EXPECT_THAT(schedule.routes, ElementsAre(Route{0, 1, false, "main"}));
  EXPECT_TRUE(schedule.lowered());
}

TEST(Lower, AddsNothingToOneStage) {
  const Schedule schedule = lower(gpipe(1, 2), {});
  EXPECT_EQ(row(schedule, 0), "0F0 0F1 0B0 0B1");
  EXPECT_TRUE(schedule.routes.empty());
}

TEST(Lower, AddsNoTransferWithinARank) {
  const Schedule schedule = lower(tables::two_stages_per_rank(tables::Placement::V, 2, 1), {});
  EXPECT_EQ(row(schedule, 0), "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0");
  EXPECT_EQ(row(schedule, 1), "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 1B0 1SEND_B0");
  EXPECT_EQ(schedule.routes.size(), 3u);
}

TEST(Lower, SendsASkipDirectlyToItsConsumerAndItsGradientBack) {
  const Schedule schedule =
      lower(gpipe(3, 1), {.routes = tables::with_skips(3, {{0, 2, true, "s"}})});
  EXPECT_EQ(row(schedule, 0), "0F0 0SEND_F0 0SEND_SKIP0:r2 0RECV_SKIP_B0:r2 0RECV_B0 0B0");
  EXPECT_EQ(row(schedule, 1), "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0");
  EXPECT_EQ(row(schedule, 2), "2RECV_SKIP0:r2 2RECV_F0 2F0 2B0 2SEND_B0 2SEND_SKIP_B0:r2");
  EXPECT_TRUE(schedule.routes.back().skip);
}

TEST(Lower, SendsAJustInTimeSkipRightBeforeItsConsumerBegins) {
  LowerOptions options{.routes = tables::with_skips(4, {{0, 3, true, "s"}})};
  const Schedule eager = lower(gpipe(4, 8), options);
  options.skip_send = SkipSend::JustInTime;
  const Schedule late = lower(gpipe(4, 8), options);
  EXPECT_LT(index_of(eager, 0, "0SEND_SKIP0:r3"), index_of(eager, 0, "0F1"));
  // Stage 3 begins micro-batch 0 at time 3, when stage 0 begins micro-batch 3.
  EXPECT_GT(index_of(late, 0, "0SEND_SKIP0:r3"), index_of(late, 0, "0F2"));
  EXPECT_LT(index_of(late, 0, "0SEND_SKIP0:r3"), index_of(late, 0, "0F3"));
  EXPECT_NO_THROW(validate(late));
}

TEST(Lower, HasNoMainLaneAfterAStageWithoutOne) {
  const std::vector<Route> routes = {{0, 1, false, "main"}, {0, 2, true, "a"}};
  const Schedule schedule = lower(gpipe(3, 1), {.routes = routes});
  EXPECT_EQ(schedule.routes, routes);
  EXPECT_EQ(row(schedule, 1), "1RECV_F0 1F0 1B0 1SEND_B0");
  EXPECT_NO_THROW(validate(schedule));
}

TEST(Lower, PutsRecomputeAfterReadySendsAndBeforeTheGradientsReceive) {
  const Schedule schedule =
      lower(gpipe(2, 2), {.recompute = {Recompute::Always, Recompute::Never}});
  EXPECT_EQ(row(schedule, 0), "0F0 0SEND_F0 0F1 0SEND_F1 0R0 0RECV_B0 0B0 0R1 0RECV_B1 0B1");
  EXPECT_THAT(row(schedule, 1), Not(HasSubstr("R0 ")));
}

TEST(Lower, ExceptLastKeepsTheMicroBatchThatIsForwardedLast) {
  const std::vector<Recompute> modes(2, Recompute::ExceptLast);
  const Schedule schedule = lower(gpipe(2, 3), {.recompute = modes});
  EXPECT_THAT(row(schedule, 0), HasSubstr("0R1"));
  EXPECT_THAT(row(schedule, 0), Not(HasSubstr("0R2")));
  Schedule swapped = gpipe(1, 3);  // the last one in order, not the highest number
  std::swap(swapped.ranks[0][0], swapped.ranks[0][2]);
  const Schedule other = lower(swapped, {.recompute = {Recompute::ExceptLast}});
  EXPECT_EQ(row(other, 0), "0F2 0F1 0F0 0B0 0R1 0B1 0R2 0B2");
}

TEST(Lower, PutsRecomputeBeforeASplitBackward) {
  const Schedule schedule =
      lower(tables::from_rows({"0F0 0F1 0I0 0I1 0W0 0W1"}), {.recompute = {Recompute::Always}});
  EXPECT_EQ(row(schedule, 0), "0F0 0F1 0R0 0I0 0R1 0I1 0W0 0W1");
}

TEST(Lower, PutsRecomputeBeforeTheBackwardOfAnOverlappedPair) {
  const Schedule schedule = lower(tables::from_rows({"0F0 (0F1;0B0)OVERLAP_F_B 0B1"}),
                                  {.recompute = {Recompute::Always}});
  EXPECT_EQ(row(schedule, 0), "0F0 0R0 (0F1;0B0)OVERLAP_F_B 0R1 0B1");
}

TEST(Lower, KeepsThePlaceOfOtherActions) {
  const Schedule schedule =
      lower(tables::from_rows(
                {"0UNSHARD 0F0 0RESHARD 0B0 0REDUCE_GRAD 0NORM 0STEP", "1F0 1B0 1NORM 1STEP"}),
            {});
  EXPECT_EQ(row(schedule, 0),
            "0UNSHARD 0F0 0SEND_F0 0RESHARD 0RECV_B0 0B0 0REDUCE_GRAD 0NORM 0STEP");
  EXPECT_EQ(row(schedule, 1), "1RECV_F0 1F0 1B0 1SEND_B0 1NORM 1STEP");
}

TEST(Lower, NeighboursThatSendToEachOtherAtOnceDoNotDeadlock) {
  // In 1F1B stage s sends an activation forward while stage s + 1 sends a gradient back.
  for (int stages = 2; stages <= 6; ++stages) {
    EXPECT_NO_THROW(validate(lower(generate("1f1b", {.stages = stages, .micro_batches = 12}), {})));
  }
}

TEST(Lower, RejectsInvalidTablesAndOptions) {
  const Schedule table = gpipe(3, 2);
  for (const Route& route : std::vector<Route>{{2, 1, true, "back"},
                                               {0, 3, true, "far"},
                                               {-1, 1, true, "early"},
                                               {0, 2, false, "main"}}) {
    EXPECT_THROW(lower(table, {.routes = {{route}}}), UsageError) << route.name;
  }
  const Route main{0, 1, false, "main"};
  EXPECT_THROW(lower(table, {.routes = {{main, main}}}), UsageError);
  EXPECT_THROW(lower(table, {.recompute = {Recompute::Always}}), UsageError);
  EXPECT_THROW(lower(lower(table, {}), {}), UsageError);
  EXPECT_THROW(lower(tables::from_rows({"0F0"}), {}), UsageError);
}

TEST(Lower, RecomputeModesHaveNames) {
  EXPECT_THAT(recompute_names(), ElementsAre("never", "except_last", "always"));
  for (const std::string& name : recompute_names())
    EXPECT_EQ(to_string(parse_recompute(name)), name);
  EXPECT_EQ(parse_recompute("never"), Recompute::Never);
  EXPECT_EQ(parse_recompute("except_last"), Recompute::ExceptLast);
  EXPECT_EQ(parse_recompute("always"), Recompute::Always);
  try {
    parse_recompute("allways");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'always'?"));
  }
}

}  // namespace
}  // namespace trestle::schedule
