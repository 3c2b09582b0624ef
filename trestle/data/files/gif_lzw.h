#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

// The pixels of a GIF's frame: codes of a growing number of bits, each for a string of pixels. Internal
// to data/files.
namespace trestle::data::codecs {

// Fills `pixels` with palette indices. `code_size`: bits of an index, 0 to 8, as it stands before the
// frame's data. `next_block` gives the bytes of the next block of codes, and none when there is no
// more. Returns what is wrong with the codes, or nothing. What follows the last pixel is not read.
//
// giflib has this too, one pixel at a time: twenty times as slow for a mask.
std::string_view decode_lzw(int code_size, const std::function<std::string_view()>& next_block,
                            std::span<std::uint8_t> pixels);

}  // namespace trestle::data::codecs
