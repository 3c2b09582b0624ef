#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

// Decodes the pixels of a GIF's frame: codes of an increasing number of bits, each for a string of
// pixels. Internal to data/files.
namespace trestle::data::codecs {

// Fills `pixels` with palette indices. `code_size`: bits of an index, 0 to 8, from the beginning of
// the frame's data. `next_block` returns the bytes of the next block of codes, and nothing at the
// end. Returns the error in the codes, or nothing. Data after the last pixel are not read.
//
// giflib can decode this too, one pixel at a time: twenty times as slow for a mask.
std::string_view decode_lzw(int code_size, const std::function<std::string_view()>& next_block,
                            std::span<std::uint8_t> pixels);

}  // namespace trestle::data::codecs
