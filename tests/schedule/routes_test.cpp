#include "trestle/schedule/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trestle::schedule {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<Route> kRoutes = {
    {0, 1, false, "main"}, {1, 2, false, "main"}, {0, 2, true, "s"}};

TEST(Routes, MapSendAndReceiveToTheirTransfer) {
  const RouteTable table(3, kRoutes);
  for (int route = 0; route < 3; ++route) {
    for (const auto way : {Transfer::Way::Activation, Transfer::Way::Gradient}) {
      const Transfer transfer{route, 5, way};
      EXPECT_EQ(table.of(send_of(kRoutes, transfer)), transfer);
      EXPECT_EQ(table.of(receive_of(kRoutes, transfer)), transfer);
    }
  }
}

TEST(Routes, SendGradientsInTheOppositeDirection) {
  const Transfer transfer{2, 3, Transfer::Way::Gradient};
  EXPECT_EQ(to_string(send_of(kRoutes, transfer)), "2SEND_SKIP_B3:r2");
  EXPECT_EQ(to_string(receive_of(kRoutes, transfer)), "0RECV_SKIP_B3:r2");
  EXPECT_EQ(to_string(send_of(kRoutes, {0, 3, Transfer::Way::Gradient})), "1SEND_B3");
}

TEST(Routes, ActionsWithoutARouteHaveNoTransfer) {
  const RouteTable table(3, kRoutes);
  EXPECT_FALSE(table.of(forward(0, 0)));
  EXPECT_FALSE(table.of(parse_action("2SEND_F0")));        // nothing after stage 2
  EXPECT_FALSE(table.of(parse_action("0SEND_B0")));        // nothing before stage 0
  EXPECT_FALSE(table.of(parse_action("1SEND_SKIP0:r2")));  // begins at stage 0
  EXPECT_FALSE(table.of(parse_action("0SEND_SKIP0:r0")));  // is the main lane
  EXPECT_FALSE(table.of(parse_action("0SEND_SKIP0:r9")));  // does not exist
  EXPECT_FALSE(table.of(parse_action("7SEND_F0")));        // the stage does not exist
  EXPECT_FALSE(RouteTable(3, {kRoutes[2]}).of(parse_action("0SEND_F0")));  // no main lane here
}

TEST(Routes, AreListedByStage) {
  const RouteTable table(3, kRoutes);
  EXPECT_THAT(table.into(0), IsEmpty());
  EXPECT_THAT(table.into(2), ElementsAre(1, 2));
  EXPECT_THAT(table.out_of(0), ElementsAre(0, 2));
  EXPECT_THAT(table.out_of(2), IsEmpty());
}

TEST(Routes, AreFoundInAnyOrder) {
  const std::vector<Route> shuffled = {kRoutes[2], kRoutes[1], kRoutes[0]};
  const RouteTable table(3, shuffled);
  EXPECT_EQ(table.of(parse_action("0SEND_F4")), (Transfer{2, 4, Transfer::Way::Activation}));
  EXPECT_EQ(table.of(parse_action("1SEND_B4")), (Transfer{2, 4, Transfer::Way::Gradient}));
  EXPECT_EQ(table.of(parse_action("1SEND_F4")), (Transfer{1, 4, Transfer::Way::Activation}));
  EXPECT_EQ(table.of(parse_action("2RECV_SKIP4:r0")), (Transfer{0, 4, Transfer::Way::Activation}));
}

TEST(Routes, StayWithinARankThatHoldsBothEnds) {
  const std::vector<int> v = {0, 1, 0};  // the rank of each stage
  EXPECT_TRUE(within_rank(v, kRoutes[2]));
  EXPECT_FALSE(within_rank(v, kRoutes[0]));
  const std::vector<int> short_of_one = {0, 1};
  EXPECT_FALSE(within_rank(short_of_one, kRoutes[2]));
}

}  // namespace
}  // namespace trestle::schedule
