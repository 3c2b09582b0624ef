#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/data/dataset.h"

// Random variations of pictures, so that a model does not memorize them.
namespace trestle::data {

enum class Flip { None, Horizontal, Vertical, Both };

// "none", "horizontal", "vertical", "both". parse_flip() throws UsageError for another word.
std::vector<std::string> flip_names();
Flip parse_flip(const std::string& name);

struct AugmentOptions {
  Flip flip = Flip::None;  // mirrors half of the pictures, left to right, upside down, or either
  // Crops up to this share of both sides, and resizes the rest to the old size; in [0, 1).
  double crop = 0;
  // Multiplies brightness, contrast and (for three channels) saturation by a factor each, from 1 -
  // colour to 1 + colour; in [0, 1).
  double colour = 0;

  bool any() const { return flip != Flip::None || crop > 0 || colour > 0; }
};

// The changes of one picture.
struct Variation {
  bool mirrored = false, upside_down = false;
  // The crop as a share of the picture: the length of its sides, and its upper left corner.
  double side = 1, left = 0, top = 0;
  double brightness = 1, contrast = 1, saturation = 1;
};

// Depends only on the options and the key. Throws UsageError for options out of their ranges.
Variation draw_variation(const AugmentOptions& options, std::uint64_t key);

// Changes an input of float [channels, height, width] in [0, 1], and an int64 target [height,
// width] (a mask) with it; other targets stay the same. Pictures are resampled bilinearly, masks to
// the nearest sample. Colours change as in torchvision's ColorJitter, in the order brightness,
// contrast, saturation. If only the input or the target was read (Part), it changes as it would
// together with the other one. Throws UsageError for inputs of another kind.
Sample vary(Sample sample, const Variation& variation);

}  // namespace trestle::data
