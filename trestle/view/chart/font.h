#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

// Letters for pictures: DejaVu Sans, drawn by FreeType (freetype.org) with smooth edges. The
// library contains the font, so that pictures look the same on every machine
// (docs/decisions/0002-letters-in-pictures.md).
namespace trestle::view {

class Font {
 public:
  // `pixels` is the size of the letters; a capital is about three quarters of it high. Throws
  // StateError if FreeType fails.
  explicit Font(int pixels = 15);
  ~Font();
  Font(const Font&) = delete;
  Font& operator=(const Font&) = delete;

  // The width of `words` (UTF-8) in pixels, from the left of the first letter to where the next one
  // would begin.
  int width(std::string_view words) const;
  // Pixels from the top of the highest letter to the bottom of the lowest.
  int height() const;

  // Draws `words` with their upper left corner at (0, 0): calls `dot` for each pixel that a letter
  // covers, with its coverage from 1 to 255. Invalid UTF-8 and letters that the font lacks become
  // boxes.
  using Dot = std::function<void(int x, int y, std::uint8_t cover)>;
  void draw(std::string_view words, const Dot& dot) const;

 private:
  struct Face;
  std::unique_ptr<Face> face_;
};

}  // namespace trestle::view
