#pragma once

#include <ATen/core/Tensor.h>

// How good a model is, as sums and counts that add up exactly over micro-batches, batches and
// ranks, whatever their sizes: never means of means. (The reference programs average batch means,
// so their last, smaller batch weighs too much.)
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

// Targets that are ignored_target (loss.h) count in neither, nor does an image that has no others.
//
// Arg-max hits over examples: output [N, C, ...] of scores, target int64 [N, ...] of class ids.
Tally accuracy_tally(const at::Tensor& output, const at::Tensor& target);

// Dice of the arg-max mask against the true one, for each image on the foreground channels (all but
// class 0), averaged over these channels: sum over images, and how many images. An image of which
// both masks lack a class scores 1 there. output [N, C >= 2, H, W], target int64 [N, H, W]. Throws
// UsageError on other shapes.
Tally dice_tally(const at::Tensor& output, const at::Tensor& target, double epsilon = 1e-6);

}  // namespace trestle::nn
