#pragma once

#include <cstdint>
#include <vector>

#include "trestle/nn/layers.h"
#include "trestle/tensor_parallel/split_plan.h"

// U-Net (Ronneberger, Fischer, Brox 2015) with batch norm and padded convolutions, in 22 layers, so
// that its four long skips cross any cut.
namespace trestle::models {

struct UNetOptions {
  std::int64_t in_channels = 3;
  std::int64_t classes = 2;
  // Channels of the first level. Deeper levels have this times 2, 4, 8 and 16.
  std::int64_t width = 64;
  bool bilinear = false;    // up-sample by interpolation, not by a learnt transposed convolution
  std::uint64_t seed = 42;  // of the initial weights (nn/layers.h)
};

// The layers: in, cat1, down1, cat2, down2, cat3, down3, cat4, down4, then up<i>_t, up<i>_pop,
// up<i>_conv for i = 1 .. 4, and out. cat<i> returns its input and keeps it as "skip<i>"; up1_pop
// takes skip4, up4_pop takes skip1. 31,037,698 parameters; 11,455,618 with bilinear.
//
// Takes images [N, in_channels, H, W] of at least 16 x 16 pixels, returns scores [N, classes, H,
// W]. If H or W is odd on some level, the up-sampled map is padded with zeros to the skip's size,
// with the extra row or column at the bottom or the right.
//
// Throws UsageError for a width that is not positive, or odd with bilinear.
nn::Layers unet(const UNetOptions& options = {});

// A plan of tensor parallelism (tensor_parallel/split_plan.h) for any number of ranks up to the
// width: the ranks share the channels between the two convolutions of each pair, and the output
// channels of the transposed convolutions, which are gathered. Skips stay whole.
std::vector<tensor_parallel::SplitRule> unet_plan(const UNetOptions& options = {});

}  // namespace trestle::models
