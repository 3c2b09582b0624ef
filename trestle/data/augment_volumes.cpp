#include "trestle/data/augment_volumes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/empty_like.h>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/random.h"
#include "trestle/base/text.h"
#include "trestle/data/files/volume.h"

// Plain loops, not ATen operators: they run on a loader's threads, while training uses the intra-op
// threads.
namespace trestle::data {
namespace {

struct AxisName {
  std::string name;
  std::size_t axis;
};

const std::vector<AxisName>& axes() {
  static const std::vector<AxisName> all = {{"slices", 0}, {"rows", 1}, {"columns", 2}};
  return all;
}

// Copies a contiguous [slices, rows, columns], reversed along the flipped axes.
template <class T>
void copy_flipped(const T* from, const Sides& sides, const Axes& flipped, T* to) {
  const auto source = [&](std::size_t axis, std::int64_t at) {
    return flipped[axis] ? sides[axis] - 1 - at : at;
  };
  for (std::int64_t z = 0; z < sides[0]; ++z)
    for (std::int64_t y = 0; y < sides[1]; ++y) {
      const T* row = from + (source(0, z) * sides[1] + source(1, y)) * sides[2];
      if (flipped[2])
        std::reverse_copy(row, row + sides[2], to);
      else
        std::copy_n(row, sides[2], to);
      to += sides[2];
    }
}

// The last three dimensions of `tensor` flipped; the first one, if there are four, is channels.
template <class T>
at::Tensor flipped_copy(const at::Tensor& tensor, const Axes& flipped) {
  const at::Tensor from = tensor.contiguous();
  at::Tensor out = at::empty_like(from);
  const std::int64_t first = from.dim() - 3;
  const Sides sides = {from.size(first), from.size(first + 1), from.size(first + 2)};
  const std::int64_t voxels = sides[0] * sides[1] * sides[2];
  const std::int64_t channels = first == 1 ? from.size(0) : 1;
  for (std::int64_t c = 0; c < channels; ++c)
    copy_flipped(from.const_data_ptr<T>() + c * voxels, sides, flipped,
                 out.mutable_data_ptr<T>() + c * voxels);
  return out;
}

at::Tensor with_other_values(const at::Tensor& patch, const VolumeVariation& variation) {
  const at::Tensor from = patch.contiguous();
  at::Tensor out = at::empty_like(from);
  const std::int64_t voxels = from.numel() / std::max<std::int64_t>(from.size(0), 1);
  for (std::int64_t c = 0; c < from.size(0); ++c) {
    const float* old = from.const_data_ptr<float>() + c * voxels;
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < voxels; ++i) sum += old[i];
    const double mean = sum / static_cast<double>(voxels);
    for (std::int64_t i = 0; i < voxels; ++i) squares += (old[i] - mean) * (old[i] - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(voxels));
    const double offset = mean + variation.brightness * deviation;
    std::transform(old, old + voxels, out.mutable_data_ptr<float>() + c * voxels, [&](float value) {
      return static_cast<float>(variation.contrast * (value - mean) + offset);
    });
  }
  return out;
}

void check_patch(const Sample& sample) {
  const at::Tensor &input = sample.input, &target = sample.target;
  const bool input_fits = !input.defined() || (input.dim() == 4 && input.device().is_cpu() &&
                                               input.scalar_type() == at::kFloat);
  const bool target_fits = !target.defined() || (target.dim() == 3 && target.device().is_cpu() &&
                                                 target.scalar_type() == at::kLong);
  const bool either = input.defined() || target.defined();
  if (either && input_fits && target_fits &&
      (!input.defined() || !target.defined() || input.sizes().slice(1) == target.sizes()))
    return;
  throw UsageError(text("'", sample.name,
                        "' is not a patch of a volume: flip_axes and intensity change CPU tensors "
                        "of float [channels, slices, rows, columns] with int64 classes for their "
                        "voxels"),
                   {.hint = "Leave them out of [data]."});
}

}  // namespace

std::vector<std::string> axis_names() {
  std::vector<std::string> names;
  for (const AxisName& known : axes()) names.push_back(known.name);
  return names;
}

Axes parse_axes(const std::vector<std::string>& names) {
  Axes chosen = {};
  for (const std::string& name : names) {
    bool& axis = chosen[choose("axis", name, axes()).axis];
    if (axis)
      throw UsageError(text("'flip_axes' names '", name, "' twice"),
                       {.hint = "Name each axis once."});
    axis = true;
  }
  return chosen;
}

VolumeVariation draw_volume_variation(const VolumeAugmentOptions& options, std::uint64_t key) {
  if (!(options.intensity >= 0 && options.intensity < 1))
    throw UsageError(
        text("'intensity' is ", options.intensity, ": it must be at least 0 and below 1"));
  // All numbers are drawn always, so that one option does not change the draws of another.
  Random random(key);
  VolumeVariation drawn;
  for (std::size_t axis = 0; axis < 3; ++axis)
    drawn.flipped[axis] = random.uniform() < 0.5 && options.flip_axes[axis];
  drawn.contrast = 1 + options.intensity * random.uniform(-1, 1);
  drawn.brightness = options.intensity * random.uniform(-1, 1);
  return drawn;
}

Sample vary_volume(Sample sample, const VolumeVariation& variation) {
  check_patch(sample);
  if (variation.flipped != Axes{}) {
    if (sample.input.defined()) sample.input = flipped_copy<float>(sample.input, variation.flipped);
    if (sample.target.defined())
      sample.target = flipped_copy<std::int64_t>(sample.target, variation.flipped);
  }
  const bool same = variation.contrast == 1 && variation.brightness == 0;
  if (sample.input.defined() && !same) sample.input = with_other_values(sample.input, variation);
  return sample;
}

}  // namespace trestle::data
