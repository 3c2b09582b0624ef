#include "trestle/data/files/channels.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::data {

Image with_channels(const Image& image, int channels) {
  if ((channels != 1 && channels != 3) || image.channels < 1 || image.channels > 4)
    throw UsageError(text("cannot convert a picture of ", image.channels, " channels to ", channels,
                          ": use 1 (grey) or 3 (RGB)"));
  if (channels == image.channels) return image;
  Image out = Image::blank(image.width, image.height, channels);
  const bool coloured = image.channels >= 3;
  const std::uint8_t* from = image.pixels.data();
  std::uint8_t* to = out.pixels.data();
  const std::uint8_t* end = to + out.pixels.size();
  for (; to != end; to += channels, from += image.channels) {
    if (channels == 3) {
      for (int c = 0; c < 3; ++c) to[c] = coloured ? from[c] : from[0];
    } else {
      *to = coloured ? static_cast<std::uint8_t>(
                           (19595 * from[0] + 38470 * from[1] + 7471 * from[2] + 0x8000) >> 16)
                     : from[0];
    }
  }
  return out;
}

}  // namespace trestle::data
