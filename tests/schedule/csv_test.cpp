#include "trestle/schedule/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/schedule/tables.h"
#include "trestle/base/error.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/validate.h"

namespace trestle::schedule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string csv_error(std::string_view csv) {
  try {
    parse_csv(csv);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Csv, WritesPyTorchsLayout) {
  const Schedule schedule = generate("1f1b", {.stages = 2, .micro_batches = 2});
  EXPECT_EQ(to_csv(schedule), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
}

TEST(Csv, ReadsPyTorchsTableWithEmptyCells) {
  const Schedule schedule = parse_csv("0F0,0F1,,,0B0,0B1\n,1F0,1B0,1F1,1B1,\n", "1f1b");
  EXPECT_EQ(schedule, generate("1f1b", {.stages = 2, .micro_batches = 2}));
}

TEST(Csv, ReadsSpacesCarriageReturnsQuotesAndNoLastNewline) {
  const Schedule schedule = parse_csv(" 0F0 ,\"0F1\",0B0, 0B1\r\n1F0,1B0,\"1F1\",1B1", "1f1b");
  EXPECT_EQ(schedule, generate("1f1b", {.stages = 2, .micro_batches = 2}));
}

TEST(Csv, PyTorchsLoweredTableGetsAMainLane) {
  const Schedule schedule = parse_csv(
      "0F0,0SEND_F0,0RECV_B0,0B0,0UNSHARD,0RESHARD,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  EXPECT_THAT(schedule.routes, ElementsAre(Route{0, 1, false, "main"}));
  EXPECT_NO_THROW(validate(schedule));
}

TEST(Csv, FindsSeveralStagesOnARank) {
  const Schedule schedule = parse_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n");
  EXPECT_THAT(schedule.rank_of_stage, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(schedule.stages, 4);
  EXPECT_EQ(schedule.micro_batches, 1);
}

TEST(Csv, RoundTripKeepsSkipsNamesRecomputeAndThreads) {
  LowerOptions options;
  options.routes = tables::with_skips(
      3, {{0, 2, true, "s1"}, {0, 1, true, "odd, \"name\"\nin two lines "}, {1, 2, true, ""}});
  options.recompute = {Recompute::Always, Recompute::ExceptLast, Recompute::Never};
  Schedule schedule = lower(generate("1f1b", {.stages = 3, .micro_batches = 4}), options);
  schedule.ranks[1][2].threads = 3;
  schedule.ranks[0].push_back({.kind = Kind::Step, .stage = 0});
  EXPECT_EQ(parse_csv(to_csv(schedule), "1f1b"), schedule);
}

TEST(Csv, CountsTheBackwardOfAnOverlappedPair) {
  const Schedule schedule = parse_csv("0F0,(0F1;1B4)OVERLAP_F_B\n");
  EXPECT_EQ(schedule.stages, 2);
  EXPECT_EQ(schedule.micro_batches, 5);
  EXPECT_THAT(schedule.rank_of_stage, ElementsAre(0, 0));
}

TEST(Csv, ErrorsNameLineAndColumn) {
  EXPECT_THAT(csv_error("0F0,0B0\n1F0,what,1B0\n"), HasSubstr("csv:2: column 2: "));
  EXPECT_THAT(csv_error("0F0,0B0\n1F0,what,1B0\n"), HasSubstr("'what'"));
  EXPECT_THAT(csv_error("0F0,\"0B0\n"), HasSubstr("no closing quote"));
  EXPECT_THAT(csv_error("\"0F0\"0B0\n"), HasSubstr("follows a closing quote"));
  EXPECT_THAT(csv_error(""), HasSubstr("no action"));
  EXPECT_THAT(csv_error(",,\n\n"), HasSubstr("no action"));
}

TEST(Csv, SkipsAByteOrderMarkAndBlankLines) {
  EXPECT_EQ(parse_csv("\xEF\xBB\xBF\r\n0F0,0B0\r\n\r\n  \n1F0,1B0\n\n"),
            parse_csv("0F0,0B0\n1F0,1B0\n"));
  EXPECT_THAT(csv_error("\n0F0,0B0\n\n1F0,what\n"), HasSubstr("csv:4: column 2: "));
}

TEST(Csv, KeepsTheRowOfARankWithoutActions) {
  Schedule schedule = parse_csv("0F0,0B0\n\"\"\n1F0,1B0\n");
  EXPECT_EQ(schedule.rank_count(), 3);
  EXPECT_EQ(parse_csv(to_csv(schedule)), schedule);
}

TEST(Csv, ChecksRouteLines) {
  EXPECT_THAT(csv_error("0F0,0B0\n#route,0,1,main\n"), HasSubstr("csv:2: "));
  EXPECT_THAT(csv_error("0F0,0B0\n#route,0,1,side,x\n"), HasSubstr("main|skip"));
  EXPECT_THAT(csv_error("0F0,0B0\n#route,0,-1,main,x\n"), HasSubstr("not a stage number"));
  EXPECT_THAT(csv_error("0F0,0B0\n#route,0,99999,main,x\n"), HasSubstr("not a stage number"));
  EXPECT_THAT(csv_error("#route,0,1,main,x\n0F0,0B0\n"), HasSubstr("follows the routes"));
}

}  // namespace
}  // namespace trestle::schedule
