#include "trestle/schedule/grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"

namespace trestle::schedule {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Grid, ShowsComputeActionsAndTheMark) {
  const Schedule schedule = generate("1f1b", {.stages = 2, .micro_batches = 2});
  EXPECT_EQ(format_grid(schedule, GridCell{1, 1}),
            "  rank 0 |  0F0   0F1   0B0   0B1\n"
            "  rank 1 |  1F0  >1B0<  1F1   1B1");
}

TEST(Grid, HidesCommunicationUnlessItIsMarked) {
  const Schedule schedule = lower(generate("gpipe", {.stages = 2, .micro_batches = 1}), {});
  EXPECT_THAT(format_grid(schedule), Not(HasSubstr("SEND")));
  EXPECT_EQ(format_grid(schedule, GridCell{0, 1}),
            "  rank 0 |  0F0       >0SEND_F0<  0B0\n"
            "  rank 1 |  1F0        1B0");
}

TEST(Grid, ShowsThePartOfALongTableAroundTheMark) {
  const Schedule schedule = generate("gpipe", {.stages = 40, .micro_batches = 100});
  const std::string grid = format_grid(schedule, GridCell{20, 50});
  EXPECT_THAT(grid, HasSubstr(">20F50<"));
  EXPECT_THAT(grid, HasSubstr("ranks above"));
  EXPECT_THAT(grid, HasSubstr("ranks below"));
  EXPECT_THAT(grid, HasSubstr(" ..."));
  EXPECT_LT(grid.size(), 4000u);
}

TEST(Grid, ShowsTheEndOfALongRowWithAMarkedWord) {
  Schedule schedule = generate("gpipe", {.stages = 2, .micro_batches = 100});
  EXPECT_THAT(format_grid_with(schedule, 1, "größe"), HasSubstr("1B1     1B0    >größe<"));
  schedule.ranks.emplace_back();
  EXPECT_THAT(format_grid_with(schedule, 2, "x"), HasSubstr("rank 2 | >x<"));
}

TEST(Grid, FormatsAnEmptyTableAsEmptyText) { EXPECT_EQ(format_grid(Schedule{}), ""); }

}  // namespace
}  // namespace trestle::schedule
