#include "trestle/schedule/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/schedule/tables.h"
#include "trestle/base/error.h"
#include "trestle/schedule/csv.h"
#include "trestle/schedule/generate.h"

namespace trestle::schedule {
namespace {

using testing::HasSubstr;

std::string table_error(const Schedule& schedule) {
  try {
    validate(schedule);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

struct Malformed {
  std::string name;
  std::vector<std::string> rows;
  std::string says;   // part of the message
  std::string marks;  // the marked cell
};

class ValidateRefuses : public testing::TestWithParam<Malformed> {};

TEST_P(ValidateRefuses, RejectsTheTable) {
  const std::string message = table_error(tables::from_rows(GetParam().rows));
  EXPECT_THAT(message, HasSubstr(GetParam().says));
  if (!GetParam().marks.empty()) {
    EXPECT_THAT(message, HasSubstr(">" + GetParam().marks + "<"));
  }
  EXPECT_THAT(message, HasSubstr("rank 0 |"));
}

INSTANTIATE_TEST_SUITE_P(
    Compute, ValidateRefuses,
    testing::Values(
        Malformed{"StageOnNoRank", {"0F0 0B0", "2F0 2B0"}, "stage 1 is on no rank", "2F0"},
        Malformed{"StageOnTwoRanks",
                  {"0F0 0B0 1F0", "1F0 1B0"},
                  "on rank 0, but stage 1 is on rank 1",
                  "1F0"},
        Malformed{"NoForward", {"0F0 0B0 0B1"}, "no forward of micro-batch 1", "0B1"},
        Malformed{"NoBackward", {"0F0 0F1 0B0"}, "no backward of micro-batch 1", "0F1"},
        Malformed{"MissingMicroBatch",
                  {"0F0 0F2 0B0 0B2"},
                  "no forward of micro-batch 1 on stage 0",
                  "0F2"},
        Malformed{"ForwardTwice", {"0F0 0F0 0B0"}, "twice", "0F0"},
        Malformed{"BackwardTwice", {"0F0 0B0 0B0"}, "twice", "0B0"},
        Malformed{"WholeAndSplitBackward", {"0F0 0B0 0I0 0W0"}, "both a B and an I", "0I0"},
        Malformed{"WholeBackwardAndWeight", {"0F0 0B0 0W0"}, "both a B and a W", "0W0"},
        Malformed{"InputWithoutWeight", {"0F0 0I0"}, "an I but no W", "0I0"},
        Malformed{"WeightWithoutInput", {"0F0 0W0"}, "a W but no I", "0W0"},
        Malformed{"WeightOnAnotherRank",
                  {"0F0 1W0 0B0", "1F0 1I0"},
                  "1W0 is on rank 0, but stage 1 is on rank 1",
                  "1W0"},
        Malformed{"MicroBatchOnOneStageOnly",
                  {"0F0 0F1 0B0 0B1", "1F0 1B0"},
                  "no forward of micro-batch 1 on stage 1",
                  "0F1"},
        Malformed{"BackwardOfAnUnknownMicroBatch",
                  {"0F0 0B0 0B1"},
                  "no forward of micro-batch 1 on stage 0",
                  "0B1"},
        Malformed{"PairRepeatsItsForward",
                  {"0F0 0F1 (0F1;0B0)OVERLAP_F_B 0B1"},
                  "table': 0F1 occurs twice",
                  "(0F1;0B0)OVERLAP_F_B"},
        Malformed{"WeightBeforeInput", {"0F0 0W0 0I0"}, "0W0 comes before 0I0", "0W0"},
        Malformed{"BackwardBeforeForward", {"0B0 0F0"}, "0B0 comes before 0F0", "0B0"},
        Malformed{"RecomputeBeforeForward", {"0R0 0F0 0B0"}, "0R0 comes before 0F0", "0R0"},
        Malformed{"RecomputeAfterBackward", {"0F0 0B0 0R0"}, "0B0 comes before 0R0", "0B0"},
        Malformed{"RecomputeTwice", {"0F0 0R0 0R0 0B0"}, "twice", "0R0"},
        Malformed{
            "BackwardBeforeTheNextStages", {"0F0 1F0 0B0 1B0"}, "0B0 comes before 1B0", "0B0"},
        Malformed{
            "ForwardBeforeTheStageBefore", {"1F0 0F0 1B0 0B0"}, "1F0 comes before 0F0", "1F0"},
        Malformed{"CrossedOrders", {"0F0 0B0 0F1 0B1", "1F1 1F0 1B1 1B0"}, "gets stuck", "0B0"}),
    [](const auto& param) { return param.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Communication, ValidateRefuses,
    testing::Values(
        Malformed{"NoSendNoReceive",
                  {"0F0 0SEND_F0 0B0", "1RECV_F0 1F0 1B0"},
                  "there is no 1SEND_B0",
                  "1B0"},
        Malformed{"SendWithoutReceive",
                  {"0F0 0SEND_F0 0RECV_B0 0B0", "1F0 1B0 1SEND_B0"},
                  "0SEND_F0 has no 1RECV_F0",
                  "0SEND_F0"},
        Malformed{"ReceiveWithoutSend",
                  {"0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0"},
                  "0RECV_B0 has no 1SEND_B0",
                  "0RECV_B0"},
        Malformed{"OneReceiveAlone", {"0F0 0B0", "1RECV_F0 1F0 1B0"}, "no 0SEND_F0", "1RECV_F0"},
        Malformed{"SendToAMissingRank", {"0F0 0SEND_F0 0B0"}, "the stages are 0 to 0", "0SEND_F0"},
        Malformed{"SendTwice",
                  {"0F0 0SEND_F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"},
                  "twice",
                  "0SEND_F0"},
        Malformed{"SendBeforeItsForward",
                  {"0SEND_F0 0F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"},
                  "0SEND_F0 comes before 0F0",
                  "0SEND_F0"},
        Malformed{"ReceiveAfterItsForward",
                  {"0F0 0SEND_F0 0RECV_B0 0B0", "1F0 1RECV_F0 1B0 1SEND_B0"},
                  "1F0 comes before 1RECV_F0",
                  "1F0"},
        Malformed{"GradientReceivedAfterItsBackward",
                  {"0F0 0SEND_F0 0B0 0RECV_B0", "1RECV_F0 1F0 1B0 1SEND_B0"},
                  "0B0 comes before 0RECV_B0",
                  "0B0"},
        Malformed{"SendOnNoRoute",
                  {"0F0 0SEND_F0 0RECV_B0 0B0 0SEND_SKIP0:r3", "1RECV_F0 1F0 1B0 1SEND_B0"},
                  "no route",
                  "0SEND_SKIP0:r3"},
        Malformed{
            "SendWithinARank", {"0F0 0SEND_F0 1F0 1B0 0B0"}, "stays within rank 0", "0SEND_F0"},
        // Each rank waits for the other to receive, a common mistake in hand-written 1F1B.
        Malformed{"NeighboursBothSendFirst",
                  {"0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
                   "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1"},
                  "rank 0 is at 0SEND_F1 and waits for 1RECV_F1 on rank 1",
                  "0SEND_F1"}),
    [](const auto& param) { return param.param.name; });

TEST(Validate, AcceptsAllGeneratedSchedules) {
  for (const auto& info : known_schedules()) {
    EXPECT_NO_THROW(validate(tables::table_on_ranks(info, 4, 6))) << info.name;
    EXPECT_NO_THROW(validate(tables::table_on_ranks(info, 3, 6, 2))) << info.name;
  }
  EXPECT_NO_THROW(validate(tables::two_stages_per_rank(tables::Placement::V, 3, 4)));
  EXPECT_NO_THROW(validate(tables::from_rows({"0F0 0R0 0I0 0W0 0STEP"})));
}

TEST(Validate, RejectsInvalidCounts) {
  EXPECT_THAT(table_error({}), HasSubstr("at least one stage"));
  Schedule schedule = generate("gpipe", {.stages = 2, .micro_batches = 2});
  schedule.rank_of_stage.pop_back();
  EXPECT_THAT(table_error(schedule), HasSubstr("rank_of_stage has 1 entries for 2 stages"));
  schedule = generate("gpipe", {.stages = 2, .micro_batches = 2});
  schedule.ranks[0][0].stage = 2;
  EXPECT_THAT(table_error(schedule), HasSubstr("names stage 2 of 2"));
  schedule = generate("gpipe", {.stages = 2, .micro_batches = 2});
  schedule.ranks[0][0].micro_batch = 2;
  EXPECT_THAT(table_error(schedule), HasSubstr("names micro-batch 2 of 2"));
  schedule = generate("gpipe", {.stages = 2, .micro_batches = 2});
  schedule.micro_batches = 2'000'000'000;  // must not cause an allocation
  EXPECT_THAT(table_error(schedule), HasSubstr("no forward of micro-batch 2 "));
}

TEST(Validate, RejectsInvalidRoutes) {
  for (const Route& route : {Route{1, 0, true, "back"}, Route{0, 0, true, "self"},
                             Route{0, 2, true, "out"}, Route{-1, 1, true, "in"}}) {
    Schedule schedule = generate("gpipe", {.stages = 2, .micro_batches = 1});
    schedule.routes = {route};
    EXPECT_THAT(table_error(schedule), HasSubstr("route '" + route.name + "' cannot go"));
  }
  Schedule schedule = generate("gpipe", {.stages = 3, .micro_batches = 1});
  schedule.routes = {{0, 2, false, "main"}};
  EXPECT_THAT(table_error(schedule), HasSubstr("cannot go"));
  schedule.routes = {{0, 1, false, "main"}, {0, 1, false, "main"}};
  EXPECT_THAT(table_error(schedule), HasSubstr("two main routes"));
}

TEST(Validate, FindsWhetherAWholeBatchLossIsPossible) {
  EXPECT_TRUE(all_forwards_first(generate("gpipe", {.stages = 3, .micro_batches = 4})));
  EXPECT_FALSE(all_forwards_first(generate("1f1b", {.stages = 3, .micro_batches = 4})));
  EXPECT_TRUE(all_forwards_first(generate("1f1b", {.stages = 3, .micro_batches = 1})));
  EXPECT_FALSE(all_forwards_first(tables::from_rows({"0F0 (0F1;0B0)OVERLAP_F_B 0B1"})));
}

// A table for a pipeline has no action that the pipeline adds. The message has its place.
TEST(Validate, RefusesForPipelinesWhatTheyAdd) {
  for (const auto& [table, action] :
       {std::pair("0F0,0B0,0STEP\n1F0,1B0,1STEP\n", "0STEP"),
        {"0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "0SEND_F0"},
        {"0F0,0F1,0R0,0B0,0R1,0B1\n1F0,1B0,1F1,1B1\n", "0R0"},
        {"0F0,0B0,0REDUCE_GRAD\n", "0REDUCE_GRAD"}}) {
    EXPECT_NO_THROW(read_csv(table)) << table;
    try {
      read_csv(table, "mine.csv", TableUse::Pipeline);
      ADD_FAILURE() << table;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(),
                  testing::AllOf(testing::HasSubstr("mine.csv"),
                                 testing::HasSubstr(std::string("takes no ") + action)));
    }
  }
  const Schedule pairs =
      generate("dualpipev", {.stages = 4, .micro_batches = 4, .stages_per_rank = 2});
  EXPECT_NO_THROW(read_csv(to_csv(pairs), "pairs.csv", TableUse::Pipeline));
}

}  // namespace
}  // namespace trestle::schedule
