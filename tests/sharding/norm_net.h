#pragma once

#include <torch/torch.h>

#include "tests/sharding/rows.h"
#include "trestle/nn/layers.h"

// A net in fp32 with normalization layers, and its data.
namespace trestle::testing {

inline constexpr int norm_batch = 12;

inline at::Tensor norm_rows(int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step));
  return at::randn({norm_batch, 6}, generator, at::TensorOptions());
}

inline at::Tensor norm_classes(int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step));
  return at::randint(0, 5, {norm_batch}, generator, at::TensorOptions().dtype(at::kLong));
}

// A layer norm, which computes in the parameters' dtype, and a batch norm, which stays in fp32.
inline nn::Layers make_norm_net() {
  nn::Layers net(nn::Seed{5});
  net.add("in", [] { return torch::nn::Linear(6, 16); });
  net.add("layer_norm", [] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})); });
  net.add("act", torch::nn::ReLU());
  net.add("batch_norm", [] { return torch::nn::BatchNorm1d(16); });
  net.add("out", [] { return torch::nn::Linear(16, 5); });
  return net;
}

}  // namespace trestle::testing
