#pragma once

#include <string_view>

#include "trestle/data/files/image.h"

// How a camera was held. Not installed.
namespace trestle::data {

// The orientation, 1 to 8, in an Exif block (a TIFF file of tags, JEITA CP-3451, tag 0x0112); 1, "as
// it is", where the block is damaged or says nothing of it.
int exif_orientation(std::string_view tiff);

// The picture as it was seen, given how it lies in the file.
Image turn_upright(Image image, int orientation);

// Whether width and height change places.
inline bool turns_sideways(int orientation) { return orientation >= 5; }

}  // namespace trestle::data
