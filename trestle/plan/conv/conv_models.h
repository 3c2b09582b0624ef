#pragma once

#include <cstdint>
#include <string_view>

#include "trestle/plan/conv/layer_list.h"

// Convolutional nets by their sizes, with the layers of torchgpipe's benchmarks (Kim et al. 2020,
// "torchgpipe: On-the-fly Pipeline Parallelism for Training Giant Models").
//
//   const plan::LayerList net = plan::parse_unet("image=192,base=64");
namespace trestle::plan {

// A U-Net of `depth` levels. Each level, the bottom and each level of the way up have
// `convolutions` units: a 3x3 convolution, dropout of channels, instance norm and leaky ReLU. A
// level halves the side of the image. The printed names (B, C) are `convolutions` and `base`.
struct UNetSizes {
  std::int64_t depth = 5;
  std::int64_t convolutions = 5;
  std::int64_t base = 64;  // channels of the first level
  std::int64_t image = 192;
  std::int64_t input_channels = 3;
  std::int64_t output_channels = 1;
};
// Throws UsageError for sizes below 1, and for an image whose side is no multiple of 2^depth.
LayerList unet_list(const UNetSizes& sizes);

// ResNet-101 (He et al. 2015): stages of 3, 4, 23 and 3 bottlenecks.
struct ResNetSizes {
  std::int64_t image = 224;
  std::int64_t classes = 1000;
};
// Throws UsageError for a side that is no multiple of 32, and for no classes.
LayerList resnet101_list(const ResNetSizes& sizes = {});

// "depth=5,convolutions=5,base=64,image=192" and "image=224,classes=1000"; all keys are optional,
// and no words are all defaults. Throws UsageError for an unknown or repeated key and for a value
// that is none, and what the functions above throw.
LayerList parse_unet(std::string_view words);
LayerList parse_resnet101(std::string_view words);

}  // namespace trestle::plan
