#pragma once

#include <gtest/gtest.h>

#include "tests/pipeline/support.h"

// Linear layers of one width, their data, and comparisons of their gradients.
namespace trestle::small {

using support::input;
using support::samples;
using support::target;
using support::width;
inline constexpr int micro_batches = 4;

inline torch::nn::Linear linear(int seed, at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(seed);
  torch::nn::Linear layer(width, width);
  layer->to(dtype);
  return layer;
}

inline std::vector<at::Tensor> gradients_of(const nn::Layers& net) {
  std::vector<at::Tensor> result;
  for (const auto& parameter : net.parameters()) {
    EXPECT_TRUE(parameter.grad().defined());
    result.push_back(parameter.grad().defined() ? parameter.grad().cpu().clone() : at::Tensor());
  }
  return result;
}

inline void expect_equal(const std::vector<at::Tensor>& expected,
                         const std::vector<at::Tensor>& actual, double tolerance = 1e-12) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(expected[i].defined() && actual[i].defined());
    EXPECT_LE(support::distance(expected[i], actual[i]),
              tolerance * (1 + expected[i].abs().max().item<double>()))
        << "parameter " << i;
  }
}

}  // namespace trestle::small
