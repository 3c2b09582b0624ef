#include "trestle/data/files/exif.h"

#include <algorithm>
#include <cstdint>

namespace trestle::data {
namespace {

constexpr int as_stored = 1;

struct TiffBlock {
  std::string_view bytes;
  bool big_endian;

  // A number of `size` bytes; 0 outside of the block.
  std::uint32_t number_at(std::uint64_t at, std::uint64_t size) const {
    if (at + size > bytes.size()) return 0;
    std::uint32_t value = 0;
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint64_t byte = big_endian ? i : size - 1 - i;
      value = value << 8 | static_cast<unsigned char>(bytes[at + byte]);
    }
    return value;
  }
};

}  // namespace

int exif_orientation(std::string_view bytes) {
  const TiffBlock tiff{bytes, bytes.starts_with("MM")};
  if (!tiff.big_endian && !bytes.starts_with("II")) return as_stored;
  if (tiff.number_at(2, 2) != 42) return as_stored;
  const std::uint64_t directory = tiff.number_at(4, 4);
  const std::uint64_t entries = tiff.number_at(directory, 2);
  constexpr std::uint64_t entry_bytes = 12;
  // The standard requires a short; some programs write a long.
  constexpr std::uint32_t orientation_tag = 0x0112, short_type = 3, long_type = 4;
  for (std::uint64_t i = 0; i < entries; ++i) {
    const std::uint64_t entry = directory + 2 + i * entry_bytes;
    if (tiff.number_at(entry, 2) != orientation_tag) continue;
    const std::uint32_t type = tiff.number_at(entry + 2, 2);
    if (type != short_type && type != long_type) return as_stored;
    const std::uint32_t value = tiff.number_at(entry + 8, type == long_type ? 4 : 2);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : as_stored;
  }
  return as_stored;
}

Image turn_upright(Image image, int orientation) {
  if (orientation < 2 || orientation > 8) return image;
  const bool sideways = turns_sideways(orientation);
  Image out = sideways ? Image::blank(image.height, image.width, image.channels)
                       : Image::blank(image.width, image.height, image.channels);
  const int right = image.width - 1, bottom = image.height - 1;
  // The directions in which the orientation reads the stored picture.
  const bool from_right = orientation == 2 || orientation == 3 || orientation >= 7;
  const bool from_bottom =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  std::uint8_t* to = out.pixels.data();
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x) {
      const int along = sideways ? y : x, down = sideways ? x : y;
      const int column = from_right ? right - along : along;
      const int row = from_bottom ? bottom - down : down;
      const auto at = (static_cast<std::size_t>(row) * image.width + column) * image.channels;
      to = std::copy_n(&image.pixels[at], image.channels, to);
    }
  }
  return out;
}

}  // namespace trestle::data
