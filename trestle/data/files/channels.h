#pragma once

#include "trestle/data/files/image.h"

namespace trestle::data {

// The picture with 1 (grey) or 3 (RGB) channels, to the bit as Pillow's convert("L") and
// convert("RGB"): grey is (19595 R + 38470 G + 7471 B + 32768) / 65536, an alpha channel is left out.
// Throws UsageError for other numbers of channels.
Image with_channels(const Image& image, int channels);

}  // namespace trestle::data
