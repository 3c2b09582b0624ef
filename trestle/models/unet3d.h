#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trestle/nn/layers.h"
#include "trestle/tensor_parallel/split_plan.h"

// The U-Net for volumes (Cicek, Abdulkadir, Lienkamp, Brox, Ronneberger 2016): the layers and the
// channels of unet.h with convolutions of 3 x 3 x 3, and a depth and a pooling of your choice.
namespace trestle::models {

// The factors of one level's pooling: of slices, rows and columns.
using Pooling = std::array<std::int64_t, 3>;

struct UNet3dOptions {
  std::int64_t in_channels = 1;
  std::int64_t classes = 2;
  std::int64_t width = 32;  // channels of the first level; each deeper level has twice as many
  std::int64_t depth = 4;   // levels below the first, 1 to 8
  // The pooling of each level from the top; empty: 2 x 2 x 2 everywhere. Scans with thick slices
  // take {1, 2, 2} at the top, until a voxel has about the same length in every direction.
  std::vector<Pooling> pooling = {};
  bool trilinear = false;   // up-sample by interpolation, not by a learnt transposed convolution
  std::uint64_t seed = 42;  // of the initial weights (nn/layers.h)
};

// The layers: in, then cat<i>, down<i> for each level, then up<i>_t, up<i>_pop, up<i>_conv for each
// level from the deepest, and out: 22 layers for a depth of 4. The kernel of a transposed
// convolution is its level's pooling. 22,578,306 parameters with the options above.
//
//   nn::Layers net = unet3d({.width = 16, .depth = 2, .pooling = {{1, 2, 2}, {2, 2, 2}}});
//   at::Tensor scores = net.forward(volumes);   // [N, 1, 24, 64, 64] -> [N, 2, 24, 64, 64]
//
// Takes volumes [N, in_channels, D, H, W] with at least smallest_side() voxels along each
// dimension, returns scores [N, classes, D, H, W]. Sides that are odd on some level are padded as
// in unet.h. Throws UsageError for options that are not positive, a pooling for another number of
// levels, a level that pools nothing, and a width that is odd with `trilinear`.
nn::Layers unet3d(const UNet3dOptions& options = {});

// A plan of tensor parallelism, as unet_plan() of unet.h.
std::vector<tensor_parallel::SplitRule> unet3d_plan(const UNet3dOptions& options = {});

// The product of all levels' factors, for slices, rows and columns.
Pooling smallest_side(const UNet3dOptions& options);

// "1x2x2" -> {1, 2, 2}. Throws UsageError for other words.
Pooling parse_pooling(const std::string& words);

}  // namespace trestle::models
