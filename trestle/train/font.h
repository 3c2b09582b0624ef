#pragma once

#include <array>
#include <cstdint>

// Letters for pictures, 5 pixels wide and 8 high (the lowest row is
// for the tails of g, j, p, q, y).
namespace trestle::train {

inline constexpr int glyph_width = 5;
inline constexpr int glyph_height = 8;

// Rows from the top; bit 4 is the leftmost pixel. Capitals look like small letters; what there is
// no glyph for, like '?'.
using Glyph = std::array<std::uint8_t, glyph_height>;
const Glyph& glyph(char letter);

}  // namespace trestle::train
