#include "trestle/base/terminal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "trestle/base/text.h"

namespace trestle {
namespace {

TEST(Terminal, CountsWidthInColumns) {
  EXPECT_EQ(columns_of(""), 0);
  EXPECT_EQ(columns_of("epoch 1/6"), 9);
  EXPECT_EQ(columns_of("━━━"), 3) << "nine bytes";
  EXPECT_EQ(columns_of("a · b"), 5);
  EXPECT_EQ(columns_of("é"), 1);
  EXPECT_EQ(columns_of("e\u0301"), 1) << "a combining accent";
  EXPECT_EQ(columns_of("車と猫"), 6);
  EXPECT_EQ(columns_of("🚗"), 2);
  EXPECT_EQ(columns_of("\x1b[1;32mdice\x1b[0m"), 4) << "colours have no width";
  EXPECT_EQ(columns_of("a\xff\xc3"), 3) << "invalid UTF-8";
  EXPECT_EQ(columns_of("\x1b["), 1) << "a colour without its end";
}

TEST(Terminal, CutsBetweenLetters) {
  EXPECT_EQ(cut_to("━━━━", 2), "━━");
  EXPECT_EQ(cut_to("車と猫", 5), "車と");
  EXPECT_EQ(cut_to("abc", 9), "abc");
  EXPECT_EQ(cut_to("abc", 0), "");
}

TEST(Terminal, FoldsLongLinesBetweenTheirParts) {
  const std::string line = "model     unet · 22 layers · 1,942,594 parameters · cut [13, 9]";
  EXPECT_EQ(folded(line, 80, 10), line);
  EXPECT_EQ(folded(line, 40, 10),
            "model     unet · 22 layers\n"
            "          1,942,594 parameters\n"
            "          cut [13, 9]");
  EXPECT_EQ(folded("          look: trestle view runs/x      continue: now", 40, 10),
            "          look: trestle view runs/x\n"
            "          continue: now");
  EXPECT_EQ(folded("weights   runs/a_name_without_end/best.safetensors", 20, 10),
            "weights   runs/a_name_without_end/best.safetensors")
      << "a path is never folded";
  EXPECT_EQ(folded("", 20, 10), "");
}

TEST(Terminal, FoldedLinesFitUnlessOnePartIsWider) {
  const std::string line =
      "epoch 1/6 ━━━━━━━━━━ 24/24  loss 0.682  validation loss 0.422  dice 0.929  40.7 images/s";
  for (int columns = 31; columns <= 200; ++columns)
    for (const std::string& row : split(folded(line, columns, 10), '\n'))
      EXPECT_LE(columns_of(row), columns) << row;
}

TEST(Terminal, WrapsParagraphsAtSpaces) {
  EXPECT_EQ(wrapped("one two three four", 9, 2), "one two\n  three\n  four");
  EXPECT_EQ(wrapped("    indented words stay", 18, 4), "    indented words\n    stay");
  EXPECT_EQ(wrapped("a runs/a_name_without_end b", 10, 0), "a\nruns/a_name_without_end\nb");
  EXPECT_EQ(wrapped("", 10, 0), "");
  const std::string words = "trained 22 layers · 1,942,594 parameters on 2 devices of 512 MiB";
  for (int columns = 12; columns <= 80; ++columns)
    for (const std::string& row : split(wrapped(words, columns, 2), '\n'))
      EXPECT_LE(columns_of(row), columns) << row;
}

TEST(Terminal, WidthOfTextIsVariableOrTerminalOr80) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  setenv("COLUMNS", "132", 1);
  EXPECT_EQ(columns_for_text(pipe_ends[1]), 132);
  for (const char* other : {"wide", "12x", "", "-5", "0", "99999999999"}) {
    setenv("COLUMNS", other, 1);
    EXPECT_EQ(columns_for_text(pipe_ends[1]), 80) << other;
  }
  unsetenv("COLUMNS");
  EXPECT_EQ(columns_for_text(pipe_ends[1]), 80);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

}  // namespace
}  // namespace trestle
