#include "trestle/base/text.h"
#include "trestle/base/shell_word.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trestle {
namespace {

using testing::ElementsAre;

TEST(Text, ConcatenatesItsArguments) { EXPECT_EQ(text("stage ", 3, " of ", 4), "stage 3 of 4"); }

TEST(ShellWord, QuotesWhatAShellWouldChange) {
  EXPECT_EQ(shell_word("runs/unet_quick"), "runs/unet_quick");
  EXPECT_EQ(shell_word("läufe/größe"), "läufe/größe");
  EXPECT_EQ(shell_word("my runs/a $b"), "'my runs/a $b'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Text, Joins) {
  EXPECT_EQ(join(std::vector<int>{1, 2, 3}, ", "), "1, 2, 3");
  EXPECT_EQ(join(std::vector<int>{}, ", "), "");
}

TEST(Text, NearestFindsTypingErrors) {
  const std::vector<std::string> keys = {"micro_batches", "momentum", "schedule", "balance"};
  EXPECT_EQ(nearest("micro_batchs", keys), "micro_batches");
  EXPECT_EQ(nearest("shcedule", keys), "schedule");
  EXPECT_EQ(nearest("Balance", keys), "balance");
  EXPECT_EQ(nearest("momemtun", keys), "momentum");
}

TEST(Text, NearestIsEmptyWithoutACloseMatch) {
  EXPECT_EQ(nearest("weights", {"balance", "schedule"}), "");
  EXPECT_EQ(nearest("x", {}), "");
  EXPECT_EQ(nearest("", {"balance"}), "");
}

TEST(Text, SplitKeepsEmptyParts) {
  EXPECT_THAT(split("a,b,,c", ','), ElementsAre("a", "b", "", "c"));
  EXPECT_THAT(split("", ','), ElementsAre(""));
  EXPECT_THAT(split(",", ','), ElementsAre("", ""));
}

TEST(Text, Trims) {
  EXPECT_EQ(trim("  a b\t\r\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
}

}  // namespace
}  // namespace trestle
