#pragma once

#include "trestle/nn/layers.h"

namespace benchmarks {

// The U-Net that grows in depth, after torchgpipe's memory benchmark: five levels, on each of them
// `blocks` layers (3x3 convolution, batch norm, ReLU) on the way down and as many on the way up.
// The widest layer of models::unet() holds nearly half of its parameters, so that more than two
// devices cannot share it out; here no layer holds much.
trestle::nn::Layers deep_unet(int channels, int blocks);

}  // namespace benchmarks
