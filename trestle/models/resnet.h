#pragma once

#include <cstdint>
#include <vector>

#include "trestle/nn/layers.h"
#include "trestle/tensor_parallel/split_plan.h"

// ResNet-18 (He, Zhang, Ren, Sun 2015) for small images, such as MNIST's 28 x 28.
namespace trestle::models {

struct ResNetOptions {
  std::int64_t in_channels = 1;
  std::int64_t classes = 10;
  std::int64_t width = 64;  // channels of the first stage; later stages: times 2, 4, 8
  std::uint64_t seed = 42;  // of the initial weights (nn/layers.h)
};

// In 10 layers: input_layer, basic_block11, 12, 21, 22, 31, 32, 41, 42, output_layer. A block is
// one layer, so its skip never leaves its device. 11,175,370 parameters.
//
// Takes images [N, in_channels, 28, 28] (17 to 32 pixels a side: the last map must be 1 x 1),
// returns scores [N, classes].
nn::Layers resnet18(const ResNetOptions& options = {});

// The same net in 62 layers, one for each operation: <block>.conv1, norm1, relu1, conv2, norm2,
// add, relu2. "add" takes the block's input, which "conv1" keeps as "<block>.identity". A cut
// inside a block therefore sends its skip to another device.
nn::Layers resnet18_flat(const ResNetOptions& options = {});

// A plan of tensor parallelism (tensor_parallel/split_plan.h) for both: the ranks share the
// channels between the two convolutions of each block.
std::vector<tensor_parallel::SplitRule> resnet18_plan();

}  // namespace trestle::models
