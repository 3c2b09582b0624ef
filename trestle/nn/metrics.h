#pragma once

#include <ATen/core/Tensor.h>

// Metrics as sums and counts, which add up exactly over micro-batches, batches and ranks of any
// sizes: never means of means. (The reference programs average batch means, so their last, smaller
// batch weighs too much.)
namespace trestle::nn {

struct Tally {
  double sum = 0;
  double count = 0;

  double mean() const { return count == 0 ? 0 : sum / count; }
  Tally& operator+=(const Tally& other) {
    sum += other.sum;
    count += other.count;
    return *this;
  }
};

// Targets equal to ignored_target (loss.h) do not count, nor does an image without other targets.
//
// Arg-max accuracy over examples: output [N, C, ...] of scores, target int64 [N, ...] of class ids.
Tally accuracy_tally(const at::Tensor& output, const at::Tensor& target);

// Dice of the arg-max mask against the true one, for each image, averaged over the foreground
// channels (all but class 0). The sum is over images, the count is the number of images. A class
// that is in neither mask of an image scores 1 there. output [N, C >= 2, H, W], target int64 [N, H,
// W], or those of volumes with one more dimension. Throws UsageError for other shapes.
Tally dice_tally(const at::Tensor& output, const at::Tensor& target, double epsilon = 1e-6);

// Dice of the arg-max masks against the true ones over all voxels of all examples together, the
// classes above 0 as one sum: 2 * hits / (guessed + true). For patches of volumes, of which many
// have no foreground: those count for nothing. The count is guessed + true. Shapes as above.
Tally voxel_dice_tally(const at::Tensor& output, const at::Tensor& target);

}  // namespace trestle::nn
