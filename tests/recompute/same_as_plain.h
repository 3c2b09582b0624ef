#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "trestle/recompute/checkpoint.h"

// Shared by the tests of checkpoint(). The oracle is the same function, called without
// checkpoint().
namespace trestle {

using at::Tensor;
using nn::checkpoint;
using testing::HasSubstr;
using Tensors = std::vector<Tensor>;

inline torch::nn::Sequential small_net(int width = 8) {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::Tanh(),
                               torch::nn::Linear(width, width), torch::nn::ReLU());
}

// The results of `loss(x)`: its value, x's gradient and those of `parameters`.
inline Tensors outcome(const std::function<Tensor(Tensor)>& loss, const Tensor& x,
                       const Tensors& parameters) {
  for (Tensor parameter : parameters) parameter.mutable_grad() = Tensor();
  torch::manual_seed(11);
  const Tensor input = x.detach().clone().requires_grad_(x.requires_grad());
  const Tensor value = loss(input);
  value.backward();
  Tensors result = {value.detach(), input.grad(), at::rand({4})};  // and the generator's state
  for (const Tensor& parameter : parameters)
    result.push_back(parameter.grad().defined() ? parameter.grad().clone() : Tensor());
  return result;
}

inline void expect_equal(const Tensors& expected, const Tensors& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(expected[i].defined(), actual[i].defined()) << i;
    EXPECT_TRUE(!expected[i].defined() || at::equal(expected[i], actual[i])) << i;
  }
}

inline Tensor leaf(at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(); }

template <class Exception>
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace trestle
