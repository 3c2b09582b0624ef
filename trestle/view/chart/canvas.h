#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "trestle/data/files/image.h"
#include "trestle/view/chart/font.h"

// An image to draw into.
namespace trestle::view {

using Colour = std::array<std::uint8_t, 3>;

inline constexpr Colour white = {255, 255, 255};
inline constexpr Colour ink = {38, 38, 43};
inline constexpr Colour quiet = {118, 118, 126};
inline constexpr Colour alarm = {196, 48, 48};

// The colour map "viridis" at t from 0 (violet) to 1 (yellow), by interpolation between nine of its
// colours (S. van der Walt, N. Smith 2015).
Colour viridis(double t);

class Canvas {
 public:
  Canvas(int width, int height, Colour background = white);

  void fill(int x, int y, int width, int height, Colour colour);
  void outline(int x, int y, int width, int height, Colour colour);
  // A line with round ends and smooth edges; a dot where both ends are equal.
  void line(double x0, double y0, double x1, double y1, double width, Colour colour);
  // Draws a grey or RGB image; what lies outside of the canvas is cut off.
  void draw(const data::Image& image, int x, int y);
  // Draws UTF-8 text with its upper left corner at (x, y).
  void write(const Font& font, std::string_view words, int x, int y, Colour colour = ink);

  const data::Image& image() const { return image_; }

 private:
  void mix(int x, int y, Colour colour, std::uint8_t cover);  // ignored outside of the canvas
  data::Image image_;
};

// Resizes an image; enlarged to whole multiples, so that pixels stay sharp.
data::Image fit(const data::Image& image, int width, int height);

}  // namespace trestle::view
