#include "trestle/optim/clip_grad_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "trestle/base/error.h"
#include "trestle/device/device.h"

namespace trestle::optim {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Parameters with gradients of different sizes, the same in each call. One has none.
std::vector<at::Tensor> some(const std::vector<at::Device>& devices, double scale = 1) {
  torch::manual_seed(3);
  std::vector<at::Tensor> parameters;
  const std::vector<std::vector<std::int64_t>> shapes = {{4, 3}, {7}, {}, {2, 3, 5}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const at::Device device = devices[i % devices.size()];
    at::Tensor parameter = at::randn(shapes[i]).to(device).requires_grad_();
    parameter.mutable_grad() = (at::randn(shapes[i]) * scale).to(device);
    parameters.push_back(parameter);
  }
  parameters.push_back(at::ones({3}).requires_grad_());
  return parameters;
}

TEST(ClipGradNorm, EqualsTorchOnOneDevice) {
  for (const double p : {1.0, 2.0, 3.0, 0.5, infinity}) {
    for (const double max_norm : {0.0, 0.1, 1.0, 1e6}) {
      const auto expected = some({at::kCPU});
      const auto actual = some({at::kCPU});
      const double norm = torch::nn::utils::clip_grad_norm_(expected, max_norm, p);
      EXPECT_EQ(grad_norm(actual, p), norm);
      EXPECT_EQ(clip_grad_norm(actual, max_norm, {.p = p}), norm);
      for (std::size_t i = 0; i + 1 < expected.size(); ++i) {
        EXPECT_TRUE(actual[i].grad().equal(expected[i].grad())) << "p " << p << " to " << max_norm;
      }
      EXPECT_FALSE(actual.back().grad().defined());
    }
  }
}

TEST(ClipGradNorm, AcceptsParametersOnSeveralDevices) {
  const auto devices = virtual_devices(2);
  for (const double p : {1.0, 2.0, 3.0, infinity}) {
    const auto expected = some({at::kCPU});
    const auto actual = some({devices[0].torch, at::kCPU, devices[1].torch});
    const double norm = torch::nn::utils::clip_grad_norm_(expected, 0.3, p);
    EXPECT_EQ(clip_grad_norm(actual, 0.3, {.p = p}), norm);
    for (std::size_t i = 0; i + 1 < expected.size(); ++i) {
      EXPECT_EQ(actual[i].grad().device(), actual[i].device());
      EXPECT_TRUE(actual[i].grad().cpu().equal(expected[i].grad())) << "p " << p;
    }
  }
}

TEST(ClipGradNorm, AcceptsDifferentTypes) {
  const auto parameters = some({at::kCPU});
  double squares = 0;
  for (std::size_t i = 0; i + 1 < parameters.size(); ++i) {
    squares += parameters[i].grad().to(at::kDouble).square().sum().item<double>();
  }
  at::Tensor half = at::zeros({2}, at::kDouble).requires_grad_();
  half.mutable_grad() = at::full({2}, 2.0, at::kDouble);
  auto mixed = parameters;
  mixed.push_back(half);
  EXPECT_NEAR(clip_grad_norm(mixed, 1), std::sqrt(squares + 8), 1e-6);
  EXPECT_EQ(half.grad().dtype(), at::kDouble);
}

TEST(ClipGradNorm, ReturnsZeroWithoutGradients) {
  EXPECT_EQ(clip_grad_norm({}, 1), 0);
  EXPECT_EQ(clip_grad_norm({at::ones({2}).requires_grad_()}, 1), 0);
  at::Tensor empty = at::ones({0}).requires_grad_();
  empty.mutable_grad() = at::ones({0});
  EXPECT_EQ(clip_grad_norm({empty}, 1, {.p = infinity}), 0);
}

TEST(ClipGradNorm, RejectsNonfiniteNormsOnRequest) {
  auto parameters = some({at::kCPU});
  parameters[0].grad().fill_(infinity);
  const at::Tensor before = parameters[1].grad().clone();
  EXPECT_THROW(clip_grad_norm(parameters, 1, {.error_if_nonfinite = true}), StateError);
  EXPECT_TRUE(parameters[1].grad().equal(before));
  EXPECT_EQ(clip_grad_norm(parameters, 1), infinity);
  EXPECT_EQ(parameters[1].grad().abs().max().item<double>(), 0);
}

TEST(ClipGradNorm, RejectsInvalidArguments) {
  const auto parameters = some({at::kCPU});
  EXPECT_THROW(clip_grad_norm(parameters, -1), UsageError);
  EXPECT_THROW(clip_grad_norm(parameters, std::nan("")), UsageError);
  EXPECT_THROW(clip_grad_norm(parameters, 1, {.p = 0}), UsageError);
  EXPECT_THROW(clip_grad_norm(parameters, 1, {.p = -2}), UsageError);
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  embedding->forward(at::arange(3)).sum().backward();
  EXPECT_THROW(clip_grad_norm(embedding->parameters(), 1), UsageError);
}

}  // namespace
}  // namespace trestle::optim
