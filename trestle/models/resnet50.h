#pragma once

#include <cstdint>
#include <vector>

#include "trestle/nn/layers.h"
#include "trestle/tensor_parallel/split_plan.h"

// ResNet-50 (He, Zhang, Ren, Sun 2015) for photos, as in torchvision: the stride of a block is in
// its 3x3 convolution ("version 1.5"), and parameters and buffers have torchvision's names.
namespace trestle::models {

struct ResNet50Options {
  std::int64_t in_channels = 3;
  std::int64_t classes = 1000;
  // Channels inside the first stage's blocks. Later stages have this times 2, 4 and 8. A block's
  // output has four times its inner channels.
  std::int64_t width = 64;
  std::uint64_t seed = 42;  // of the initial weights (nn/layers.h)
};

// 22 layers: conv1, bn1, relu, maxpool, the blocks layer1.0 to 2, layer2.0 to 3, layer3.0 to 5,
// layer4.0 to 2, avgpool, fc. A block is one layer, so its skip never leaves its device. The
// balance [11, 11] cuts after layer2, as in PyTorch's tutorial on model parallelism. 25,557,032
// parameters. A state dict of torchvision's resnet50 fits name by name.
//
// Initial weights follow torchvision's rules: convolutions normal with variance 2 / (out channels *
// kernel area), scales of batch norms 1 and shifts 0, the linear layer torch's own.
//
// Takes images [N, in_channels, H, W] of any size, returns scores [N, classes]. Throws UsageError
// for options that are not positive.
nn::Layers resnet50(const ResNet50Options& options = {});

// A plan of tensor parallelism (tensor_parallel/split_plan.h): the ranks share the channels between
// the second and the third convolution of each block.
std::vector<tensor_parallel::SplitRule> resnet50_plan();

}  // namespace trestle::models
