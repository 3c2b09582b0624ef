#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trestle/data/dataset.h"

// Random variations of patches of volumes, so that a model does not memorize them.
//
//   const VolumeAugmentOptions options{.flip_axes = parse_axes({"rows", "columns"})};
//   Sample varied = vary_volume(patches.get(0), draw_volume_variation(options, 7));
namespace trestle::data {

// Slices, rows, columns.
using Axes = std::array<bool, 3>;

// "slices", "rows", "columns".
std::vector<std::string> axis_names();
// Throws UsageError for another word, and for one that stands twice.
Axes parse_axes(const std::vector<std::string>& names);

struct VolumeAugmentOptions {
  Axes flip_axes = {};  // mirrors half of the patches along each of them
  // Multiplies the deviation of a patch's values by a factor from 1 - intensity to 1 + intensity,
  // and moves their mean by up to `intensity` deviations either way; in [0, 1).
  double intensity = 0;

  bool any() const { return flip_axes != Axes{} || intensity > 0; }
};

// The changes of one patch. Each channel's values become
// mean + contrast * (value - mean) + brightness * deviation.
struct VolumeVariation {
  Axes flipped = {};
  double contrast = 1, brightness = 0;
};

// Depends only on the options and the key. Throws UsageError for options out of their ranges.
VolumeVariation draw_volume_variation(const VolumeAugmentOptions& options, std::uint64_t key);

// Changes an input of float [channels, slices, rows, columns], and an int64 target [slices, rows,
// columns] with it. The sample's tensors stay as they are. If only the input or the target was read
// (Part), it changes as it would together with the other one. Throws UsageError for other tensors.
Sample vary_volume(Sample sample, const VolumeVariation& variation);

}  // namespace trestle::data
