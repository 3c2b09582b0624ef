#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/data/dataset.h"

// Pictures that differ a little each time they are shown, so that a model does not learn them by
// heart.
namespace trestle::data {

enum class Flip { None, Horizontal, Vertical, Both };

// "none", "horizontal", "vertical", "both". The second throws UsageError for another word.
std::vector<std::string> flip_names();
Flip parse_flip(const std::string& name);

struct AugmentOptions {
  Flip flip = Flip::None;  // mirrors every second picture, left to right, upside down, or either
  // Cuts up to this share of both sides off, and enlarges the rest to the old size; in [0, 1).
  double crop = 0;
  // Brightness, contrast and (of three channels) saturation times a factor each, from 1 - colour to
  // 1 + colour; in [0, 1).
  double colour = 0;

  bool any() const { return flip != Flip::None || crop > 0 || colour > 0; }
};

// How one picture is changed.
struct Variation {
  bool mirrored = false, upside_down = false;
  // Of the part that stays, as shares of the picture: the length of its sides, its upper left corner.
  double side = 1, left = 0, top = 0;
  double brightness = 1, contrast = 1, saturation = 1;
};

// A function of the options and the key alone. Throws UsageError for options out of their ranges.
Variation draw_variation(const AugmentOptions& options, std::uint64_t key);

// float [channels, height, width] in [0, 1], with the target moved along where it is int64
// [height, width] (a mask); another target stays. Bilinear, masks to the nearest sample. Colours as
// torchvision's ColorJitter does them, in the order brightness, contrast, saturation. A part that was
// not read (Part) stays undefined, the other one changes as it would beside it. Throws UsageError for
// inputs of another kind.
Sample vary(Sample sample, const Variation& variation);

}  // namespace trestle::data
