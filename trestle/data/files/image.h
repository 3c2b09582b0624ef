#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trestle::data {

// A picture of 8-bit samples in memory: rows from the top, with the channels of a pixel next to
// each other.
//
//     sample(x, y, c) = pixels[(y * width + x) * channels + c]
//
// 1 channel is grey or a palette index (the image itself does not record which), 2 grey and alpha,
// 3 RGB, 4 RGBA.
struct Image {
  int width = 0;
  int height = 0;
  int channels = 0;
  std::vector<std::uint8_t> pixels = {};  // width * height * channels

  // All samples zero.
  static Image blank(int width, int height, int channels) {
    Image image{width, height, channels, {}};
    image.pixels.resize(static_cast<std::size_t>(width) * height * channels);
    return image;
  }

  std::uint8_t& at(int x, int y, int channel = 0) {
    return pixels[(static_cast<std::size_t>(y) * width + x) * channels + channel];
  }
  std::uint8_t at(int x, int y, int channel = 0) const {
    return pixels[(static_cast<std::size_t>(y) * width + x) * channels + channel];
  }

  bool operator==(const Image&) const = default;
};

}  // namespace trestle::data
