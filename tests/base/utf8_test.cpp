#include "trestle/base/utf8.h"

#include <gtest/gtest.h>

namespace trestle {
namespace {

TEST(Utf8, RejectsInvalidBytes) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("plain \t\x7f"));
  EXPECT_TRUE(is_utf8("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"));
  EXPECT_FALSE(is_utf8("\xff"));
  EXPECT_FALSE(is_utf8("b\xe4r.png")) << "Latin-1";
  EXPECT_FALSE(is_utf8("\xc3")) << "cut off";
  EXPECT_FALSE(is_utf8("\xc0\x80")) << "overlong";
  EXPECT_FALSE(is_utf8("\xe0\x80\x80")) << "overlong";
  EXPECT_FALSE(is_utf8("\xed\xa0\x80")) << "a surrogate";
  EXPECT_FALSE(is_utf8("\xf4\x90\x80\x80")) << "above U+10FFFF";
}

TEST(Utf8, ReturnsTheLengthOfACharacter) {
  const char* text = "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80";
  EXPECT_EQ(utf8_length(text, 0), 1u);
  EXPECT_EQ(utf8_length(text, 1), 2u);
  EXPECT_EQ(utf8_length(text, 2), 0u) << "inside of a character";
  EXPECT_EQ(utf8_length(text, 3), 3u);
  EXPECT_EQ(utf8_length(text, 6), 4u);
}

}  // namespace
}  // namespace trestle
