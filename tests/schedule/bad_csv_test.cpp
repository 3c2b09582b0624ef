// The whole message for each mistake in a table that a user writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/csv.h"

namespace trestle::schedule {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Both a file that is not a table and a table that cannot run are invalid requests: the program
// ends with code 2.
std::string refused(std::string_view csv) {
  try {
    read_csv(csv, "mine.csv");
  } catch (const UsageError& error) {
    return error.what();
  } catch (const Error& error) {
    return text("another class of error: ", error.what());
  }
  return "no error";
}

TEST(BadCsv, MissingRank) {
  EXPECT_EQ(refused("0F0,0F1,0B0,0B1\n2F0,2B0,2F1,2B1\n"),
            "mine.csv:2: column 1: stage 1 is on no rank\n"
            "  rank 0 |  0F0   0F1   0B0   0B1\n"
            "  rank 1 | >2F0<  2B0   2F1   2B1\n"
            "  Add the row with stage 1, or number the stages without a gap.");
}

TEST(BadCsv, StageOnTwoRanks) {
  EXPECT_EQ(refused("0F0,0F1,1B1,0B0,0B1\n1F0,1B0,1F1\n"),
            "mine.csv:1: column 3: 1B1 is on rank 0, but stage 1 is on rank 1\n"
            "  rank 0 |  0F0   0F1  >1B1<  0B0   0B1\n"
            "  rank 1 |  1F0   1B0   1F1\n"
            "  Put all actions of a stage into the row of one rank.");
}

TEST(BadCsv, BackwardBeforeForward) {
  EXPECT_EQ(refused("0F0,0F1,0B0,0B1\n1F0,1B0,,1B1,1F1\n"),
            "mine.csv:2: column 4: 1B1 comes before 1F1, which it needs\n"
            "  rank 0 |  0F0   0F1   0B0   0B1\n"
            "  rank 1 |  1F0   1B0  >1B1<  1F1\n"
            "  Put 1B1 behind 1F1.");
}

TEST(BadCsv, WeightGradientWithoutInputGradient) {
  EXPECT_EQ(refused("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1W1\n"),
            "mine.csv:2: column 4: there is a W but no I of micro-batch 1 on stage 1\n"
            "  rank 0 |  0F0   0F1   0B0   0B1\n"
            "  rank 1 |  1F0   1B0   1F1  >1W1<\n"
            "  Give each stage for each micro-batch one F, and one B or one I with one W.");
}

TEST(BadCsv, BothWholeAndSplitBackward) {
  EXPECT_EQ(refused("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1,1I1,1W1\n"),
            "mine.csv:2: column 5: there are both a B and an I of micro-batch 1 on stage 1\n"
            "  rank 0 |  0F0   0F1   0B0   0B1\n"
            "  rank 1 |  1F0   1B0   1F1   1B1  >1I1<  1W1\n"
            "  Give each stage for each micro-batch one F, and one B or one I with one W.");
}

TEST(BadCsv, UnknownWord) {
  EXPECT_EQ(refused("0F0,0F1,0B0,0B1\n1F0,1B0,1X1,1B1\n"),
            "mine.csv:2: column 3: '1X1' is not a schedule action\n"
            "  rank 0 |  0F0   0F1   0B0   0B1\n"
            "  rank 1 |  1F0   1B0  >1X1<\n"
            "  Expected a stage (0 to 32766), a kind and a micro-batch, such as 2F0, 1B3, 0SEND_F2 "
            "or 0SEND_SKIP2:r1.");
}

TEST(BadCsv, DeadlockUnderBlockingSends) {
  EXPECT_EQ(refused("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"),
            "mine.csv:1: column 4: the table deadlocks: with sends that block until they are "
            "received, these ranks wait for each other\n"
            "  rank 0 is at 0SEND_F1 and waits for 1RECV_F1 on rank 1\n"
            "  rank 1 is at 1SEND_B0 and waits for 0RECV_B0 on rank 0\n"
            "  rank 0 |  0F0        0F1       >0SEND_F1<  0B0        0B1\n"
            "  rank 1 |  1F0        1B0        1F1        1B1\n"
            "  Put sends and receives into one order that all ranks share, or leave them out: "
            "trestle then adds them.");
}

TEST(BadCsv, DeadlockWithoutTransfers) {
  EXPECT_EQ(refused("0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0\n"),
            "mine.csv:1: column 2: rank 0 gets stuck: 0B0 waits for ever for the backward of "
            "micro-batch 0 on stage 1\n"
            "  rank 0 |  0F0  >0B0<  0F1   0B1\n"
            "  rank 1 |  1F1   1F0   1B1   1B0\n"
            "  Order the rows so that on no two ranks an action waits for a later one of the other "
            "rank.");
}

TEST(BadCsv, CellThatATerminalWouldObey) {
  EXPECT_THAT(refused("0F0,\x1b[31m0B0\n"),
              HasSubstr("column 2: '\\x1b[31m0B0' is not a schedule action\n"
                        "  rank 0 |  0F0          >\\x1b[31m0B0<\n"));
  EXPECT_THAT(refused("0F0,0B0\n1F0,1B0\n#route,0,5,main,\x1b[31m\n"),
              HasSubstr("route '\\x1b[31m' cannot go"));
}

TEST(BadCsv, Quotes) {
  EXPECT_EQ(refused("0F0,\"0B0\n1F0,1B0\n"),
            "mine.csv:1: column 2: a quoted field has no closing quote\n"
            "  rank 0 |  0F0             >0B0\\n1F0,1B0\\n<\n"
            "  Put a quoted cell between two quotes, and a comma behind it.");
  EXPECT_THAT(refused("0F0,\"0B0\"1,0F1\n"),
              HasSubstr("mine.csv:1: column 2: text follows a closing quote\n"
                        "  rank 0 |  0F0  >0B0<\n"));
}

TEST(BadCsv, RouteLines) {
  EXPECT_EQ(refused("0F0,0B0\n#route,0,1,mian,x\n"),
            "mine.csv:2: column 4: a route is 'main' or 'skip'\n"
            "  #route,0,1,>mian<,x\n"
            "  Expected '#route,FROM,TO,main|skip,NAME'.");
  EXPECT_THAT(refused("0F0,0B0\n#route,0,40000,main,x\n"),
              HasSubstr("mine.csv:2: column 3: '40000' is not a stage number\n"
                        "  #route,0,>40000<,main,x\n"
                        "  Stages have the numbers 0 to 32766."));
  EXPECT_THAT(refused("0F0,0B0\n#route,0,1\n"), HasSubstr("  >#route<,0,1\n"));
  EXPECT_EQ(refused("0F0,0B0\n#route,0,1,main,x\n1F0,1B0\n"),
            "mine.csv:3: column 1: a rank's row follows the routes\n"
            "  rank 0 |  0F0   0B0\n"
            "  rank 1 | >1F0<\n"
            "  Put all ranks first, then the #route lines.");
}

TEST(BadCsv, NumbersOutOfRange) {
  for (const char* cell : {"0F-1", "-1F0", "32767F0", "0F2147483647", "0F99999999999"})
    EXPECT_THAT(refused(text("0F0,", cell, "\n")),
                AllOf(HasSubstr(text("'", cell, "' is not")), HasSubstr(text(">", cell, "<"))));
  EXPECT_THAT(refused("0F0,0B2147483646\n"),
              AllOf(HasSubstr("no forward of micro-batch 1"), HasSubstr(">0B2147483646<")));
}

TEST(BadCsv, FilesThatAreNoTable) {
  EXPECT_THAT(refused(std::string_view("\x7f"
                                       "ELF\0\1,\xff",
                                       8)),
              HasSubstr("column 1: '\\x7fELF\\x00\\x01' is not a schedule action"));
  EXPECT_THAT(refused(std::string_view("\xff\xfe"
                                       "0\0F\0",
                                       6)),
              HasSubstr("is UTF-16"));
  EXPECT_THAT(refused(",,\n\"\"\n"), HasSubstr("mine.csv: the schedule table holds no action"));
  EXPECT_THAT(refused("0UNSHARD\n"), HasSubstr("at least one stage, micro-batch and rank"));
}

TEST(BadCsv, PlacesCountBlankLinesAndEmptyCells) {
  EXPECT_THAT(refused("\xEF\xBB\xBF\r\n0F0,0B0\r\n\r\n\"\"\r\n,1B0,1F0\r\n"),
              HasSubstr("mine.csv:5: column 2: 1B0 comes before 1F0"));
}

TEST(BadCsv, AcceptsPyTorchsWordsForSharding) {
  EXPECT_EQ(read_csv("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n1UNSHARD,1F0,1B0,1RESHARD\n").stages,
            2);
}

}  // namespace
}  // namespace trestle::schedule
