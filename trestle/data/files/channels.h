#pragma once

#include "trestle/data/files/image.h"

namespace trestle::data {

// Converts a picture to 1 (grey) or 3 (RGB) channels, with the bits of Pillow's convert("L") and
// convert("RGB"): grey is (19595 R + 38470 G + 7471 B + 32768) / 65536, and an alpha channel is
// dropped. Throws UsageError for other numbers of channels.
Image with_channels(const Image& image, int channels);

}  // namespace trestle::data
