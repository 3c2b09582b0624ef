#pragma once

#include "trestle/nn/layers.h"

namespace benchmarks {

// A U-Net that grows in depth, after torchgpipe's memory benchmark. Each of its five levels has
// `blocks` layers (3x3 convolution, batch norm, ReLU) on the way down and `blocks` on the way up.
// The widest layer of models::unet() has nearly half of its parameters, so more than two devices
// gain little. Here every layer is small.
trestle::nn::Layers deep_unet(int channels, int blocks);

}  // namespace benchmarks
