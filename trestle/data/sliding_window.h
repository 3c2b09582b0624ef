#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trestle/data/files/volume.h"

// Predicts a whole volume window by window.
namespace trestle::data {

// The weight of a voxel of a window where windows overlap.
enum class Blend {
  Gaussian,  // a bell around the middle of the window, with a deviation of an eighth of each side
  Linear,    // falls from the middle of the window to its border in straight lines
  Constant,  // the mean of all windows
};

// "gaussian", "linear", "constant".
std::vector<std::string> blend_names();
Blend parse_blend(const std::string& name);

// The first voxels of the windows along one side: evenly spaced, with neighbours at most
// window * (1 - overlap) apart, the first at 0 and the last at size - window. Throws UsageError
// unless 1 <= window <= size and 0 <= overlap < 1.
std::vector<std::int64_t> window_starts(std::int64_t size, std::int64_t window, double overlap);

// The first voxels of all windows of a volume, slices first.
std::vector<Sides> windows_of(const Sides& sides, const Sides& window, double overlap);

// float [window], the largest is 1 and all are above 0.
at::Tensor blend_weights(const Sides& window, Blend blend);

struct SlidingWindowOptions {
  Sides window = {};
  double overlap = 0.5;
  Blend blend = Blend::Gaussian;
  std::int64_t batch = 1;  // windows of one call of the model
};

// A model's class probabilities for a volume [channels, slices, rows, columns] of any size, as
// float [classes, slices, rows, columns]. `model` maps windows [n, channels, ...] to scores
// [n, classes, ...] on the CPU; their soft-max is averaged with the weights of `blend`. A side that
// is shorter than the window is extended with its border values, and cut again.
//
//   at::Tensor p = slide(volume, {.window = {16, 64, 64}}, [&](const at::Tensor& windows) {
//     return pipeline.evaluate(windows).to(at::kCPU);
//   });
at::Tensor slide(const at::Tensor& volume, const SlidingWindowOptions& options,
                 const std::function<at::Tensor(const at::Tensor& windows)>& model);

}  // namespace trestle::data
