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

TEST(Text, PrintableEscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("2F0 größe", 20), "2F0 größe");
  EXPECT_EQ(printable("\x1b[31m\n\t\x7f", 20), "\\x1b[31m\\n\\t\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "1\xff",
                      20),
            "\\xc2\\x9b1\\xff");               // CSI, and no UTF-8
  EXPECT_EQ(printable("a\\n", 20), "a\\\\n");  // not a newline
  EXPECT_EQ(printable("äöü", 2), "äö...");
  EXPECT_EQ(printable(std::string_view("\0", 1), 1), "\\x00");
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
