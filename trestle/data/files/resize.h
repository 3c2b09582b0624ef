#pragma once

#include "trestle/data/files/image.h"

// Resizing that gives the bits of Pillow's Image.resize (the program the
// reference data pipeline uses).
//
//   Image small = resize_bicubic(photo, 959, 640);
namespace trestle::data {

// Antialiased bicubic (Keys 1981 with a = -0.5; when shrinking, the kernel is stretched by the
// scale). Two passes of 8-bit samples in fixed point of 22 bits, horizontal first, each rounded and
// clipped. 1 or 3 channels: with alpha the channels would have to be weighted first. Throws
// UsageError on other channel counts and on empty sizes.
Image resize_bicubic(const Image& image, int width, int height);

// The sample under each new pixel's centre. Any number of channels.
// Throws UsageError on empty sizes.
Image resize_nearest(const Image& image, int width, int height);

}  // namespace trestle::data
