#include "trestle/data/files/gif_lzw.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace trestle::data::codecs {
namespace {

// giflib's encoder clears a full table; another encoder may not, and then adds no more codes.
TEST(GifLzw, AFullTableIsKept) {
  constexpr int clear = 256, last_code = 4095;
  std::string bytes;
  std::vector<std::uint8_t> expected;
  std::uint32_t buffer = 0;
  int held = 0, bits = 9, next = clear + 2;
  const auto put = [&](int code) {
    buffer |= static_cast<std::uint32_t>(code) << held;
    for (held += bits; held >= 8; held -= 8, buffer >>= 8) bytes += static_cast<char>(buffer & 255);
  };
  put(clear);
  for (int i = 0; i < 6000; ++i) {
    put(i % 251);
    expected.push_back(static_cast<std::uint8_t>(i % 251));
    if (i > 0 && next <= last_code) ++next;
    if (next >= 1 << bits && bits < 12) ++bits;
  }
  put(last_code);  // code 258 is pixels 0 and 1, this one pixels 3837 and 3838
  expected.insert(expected.end(), {3837 % 251, 3838 % 251});
  bytes += static_cast<char>(buffer & 255);
  std::string_view rest = bytes;
  const auto next_block = [&] {
    const std::string_view block = rest.substr(0, 255);
    rest.remove_prefix(block.size());
    return block;
  };
  std::vector<std::uint8_t> pixels(expected.size());
  EXPECT_EQ(decode_lzw(8, next_block, pixels), "");
  EXPECT_EQ(pixels, expected);
}

TEST(GifLzw, UndefinedCodesAreErrors) {
  std::vector<std::uint8_t> pixels(8);
  const auto decode = [&](std::string_view codes) {
    return decode_lzw(
        2, [&] { return std::exchange(codes, std::string_view()); }, pixels);
  };
  EXPECT_NE(decode(std::string_view("\x3c", 1)), "");  // clear, then 7, which is undefined
  EXPECT_NE(decode(std::string_view("\x2c", 1)), "");  // clear, then the end
  EXPECT_NE(decode(""), "");
}

}  // namespace
}  // namespace trestle::data::codecs
