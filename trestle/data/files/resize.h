#pragma once

#include "trestle/data/files/image.h"

// Resizes with the bits of Pillow's Image.resize, the program of the reference data pipeline.
//
//   Image small = resize_bicubic(photo, 959, 640);
namespace trestle::data {

// Antialiased bicubic (Keys 1981 with a = -0.5; when shrinking, the kernel is stretched by the
// scale). Two passes of 8-bit samples in fixed point of 22 bits, horizontal first, each rounded and
// clipped. Supports 1 or 3 channels: channels with alpha would have to be weighted first. Throws
// UsageError for other numbers of channels and for empty sizes.
Image resize_bicubic(const Image& image, int width, int height);

// The sample under each new pixel's centre. Any number of channels. Throws UsageError for empty
// sizes.
Image resize_nearest(const Image& image, int width, int height);

}  // namespace trestle::data
