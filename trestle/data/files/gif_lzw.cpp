#include "trestle/data/files/gif_lzw.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace trestle::data::codecs {
namespace {

constexpr int longest_code = 12;  // bits

// A string of pixels, at its first occurrence.
struct Run {
  std::size_t begin = 0;
  std::size_t length = 0;
};

// Reads codes from blocks of bytes, the lowest bit first.
class Codes {
 public:
  explicit Codes(const std::function<std::string_view()>& next_block) : next_block_(next_block) {}

  std::optional<int> next(int bits) {
    while (held_ < bits) {
      if (block_.empty()) block_ = next_block_();
      if (block_.empty()) return std::nullopt;
      buffer_ |= static_cast<std::uint32_t>(static_cast<unsigned char>(block_[0])) << held_;
      block_.remove_prefix(1);
      held_ += 8;
    }
    const int code = static_cast<int>(buffer_ & ((1U << bits) - 1));
    buffer_ >>= bits;
    held_ -= bits;
    return code;
  }

 private:
  const std::function<std::string_view()>& next_block_;
  std::string_view block_;
  std::uint32_t buffer_ = 0;
  int held_ = 0;  // bits in the buffer, below 8 between two codes
};

// Appends `run` to the pixels, as far as there is room. Its last pixel may be the first appended
// one: then the run is the previous string and that string's own first pixel.
void append(std::span<std::uint8_t> pixels, std::size_t& done, const Run& run) {
  const std::size_t count = std::min(run.length, pixels.size() - done);
  const std::size_t there = std::min(count, done - run.begin);
  std::memcpy(&pixels[done], &pixels[run.begin], there);
  if (there < count) pixels[done + there] = pixels[run.begin + there];
  done += count;
}

}  // namespace

std::string_view decode_lzw(int code_size, const std::function<std::string_view()>& next_block,
                            std::span<std::uint8_t> pixels) {
  if (code_size < 0 || code_size > 8) return "its palette is too large";
  const int clear = 1 << code_size, end = clear + 1;
  // A new string is the previous one and the next pixel of the picture.
  std::array<Run, 1 << longest_code> strings;
  Codes codes(next_block);
  int bits = code_size + 1;
  int next = end + 1;  // the code of the next new string
  Run before;          // empty: there is no previous string
  for (std::size_t done = 0; done < pixels.size();) {
    const std::optional<int> code = codes.next(bits);
    if (!code || *code == end) return "the file ends too early";
    if (*code == clear) {
      bits = code_size + 1;
      next = end + 1;
      before = {};
      continue;
    }
    if (before.length > 0 && next < 1 << longest_code)
      strings[static_cast<std::size_t>(next++)] = {before.begin, before.length + 1};
    const std::size_t begin = done;
    if (*code < clear)
      pixels[done++] = static_cast<std::uint8_t>(*code);
    else if (*code < next)
      append(pixels, done, strings[static_cast<std::size_t>(*code)]);
    else
      return "it has an undefined code";
    before = {begin, done - begin};
    if (next >= 1 << bits && bits < longest_code) ++bits;
  }
  return "";
}

}  // namespace trestle::data::codecs
