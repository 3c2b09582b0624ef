#include "trestle/schedule/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trestle::schedule {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<Route> kRoutes = {
    {0, 1, false, "main"}, {1, 2, false, "main"}, {0, 2, true, "s"}};

TEST(Routes, SendAndReceiveOfATransferLeadBackToIt) {
  for (int route = 0; route < 3; ++route) {
    for (const auto way : {Transfer::Way::Activation, Transfer::Way::Gradient}) {
      const Transfer transfer{route, 5, way};
      EXPECT_EQ(transfer_of(kRoutes, send_of(kRoutes, transfer)), transfer);
      EXPECT_EQ(transfer_of(kRoutes, receive_of(kRoutes, transfer)), transfer);
    }
  }
}

TEST(Routes, TheGradientGoesTheOtherWay) {
  const Transfer transfer{2, 3, Transfer::Way::Gradient};
  EXPECT_EQ(to_string(send_of(kRoutes, transfer)), "2SEND_SKIP_B3:r2");
  EXPECT_EQ(to_string(receive_of(kRoutes, transfer)), "0RECV_SKIP_B3:r2");
  EXPECT_EQ(to_string(send_of(kRoutes, {0, 3, Transfer::Way::Gradient})), "1SEND_B3");
}

TEST(Routes, ActionsWithoutARouteHaveNoTransfer) {
  EXPECT_FALSE(transfer_of(kRoutes, forward(0, 0)));
  EXPECT_FALSE(transfer_of(kRoutes, parse_action("2SEND_F0")));        // nothing after stage 2
  EXPECT_FALSE(transfer_of(kRoutes, parse_action("0SEND_B0")));        // nothing before stage 0
  EXPECT_FALSE(transfer_of(kRoutes, parse_action("1SEND_SKIP0:r2")));  // begins at stage 0
  EXPECT_FALSE(transfer_of(kRoutes, parse_action("0SEND_SKIP0:r0")));  // is the main lane
  EXPECT_FALSE(transfer_of(kRoutes, parse_action("0SEND_SKIP0:r9")));  // does not exist
}

TEST(Routes, TableSortsThemByStage) {
  Schedule schedule;
  schedule.stages = 3;
  schedule.routes = kRoutes;
  const RouteTable table = route_table(schedule);
  EXPECT_THAT(table.into[0], IsEmpty());
  EXPECT_THAT(table.into[2], ElementsAre(1, 2));
  EXPECT_THAT(table.out_of[0], ElementsAre(0, 2));
  EXPECT_THAT(table.out_of[2], IsEmpty());
}

}  // namespace
}  // namespace trestle::schedule
