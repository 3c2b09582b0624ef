#pragma once

#include <string_view>

#include "trestle/data/files/image.h"

// The orientation of the camera. Internal to data/files.
namespace trestle::data {

// The orientation, 1 to 8, in an Exif block (a TIFF file of tags, JEITA CP-3451, tag 0x0112).
// Returns 1, "as stored", if the block is damaged or has no orientation.
int exif_orientation(std::string_view tiff);

// Turns the stored picture upright.
Image turn_upright(Image image, int orientation);

// Whether width and height are exchanged.
inline bool turns_sideways(int orientation) { return orientation >= 5; }

}  // namespace trestle::data
