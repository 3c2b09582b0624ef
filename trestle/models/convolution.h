#pragma once

#include <torch/nn/modules/conv.h>

#include <cstdint>

// Building blocks of the residual nets. Internal to this folder.
namespace trestle::models {

// Without bias, since a batch norm follows, and padded so that stride 1 keeps the size.
inline torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, int kernel, int stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

}  // namespace trestle::models
