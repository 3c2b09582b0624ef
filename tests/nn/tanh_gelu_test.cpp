#include "trestle/nn/tanh_gelu.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/virtual_environment.h"
#include "trestle/device/device.h"

// Plain libtorch in double says what is right.
namespace trestle::nn {
namespace {

struct Gelu {
  at::Tensor y, gradient;
};

Gelu ours(const at::Tensor& given, const at::Tensor& above) {
  const at::Tensor x = given.detach().requires_grad_();
  const at::Tensor y = tanh_gelu(x);
  y.backward(above);
  return {y.detach(), x.grad()};
}

Gelu exact(const at::Tensor& given, const at::Tensor& above) {
  const at::Tensor x = given.detach().cpu().to(at::kDouble).requires_grad_();
  const at::Tensor y = at::gelu(x, "tanh");
  y.backward(above.cpu().to(at::kDouble));
  return {y.detach(), x.grad()};
}

void expect_close(const at::Tensor& found, const at::Tensor& right) {
  EXPECT_TRUE(at::allclose(found.cpu().to(at::kDouble), right, 2e-6, 2e-7))
      << (found.cpu().to(at::kDouble) - right).abs().max();
}

TEST(TanhGelu, EqualsLibtorchToRounding) {
  const at::Tensor x = at::linspace(-30, 30, 60'001), above = at::linspace(1, -2, 60'001);
  const Gelu found = ours(x, above), right = exact(x, above);
  expect_close(found.y, right.y);
  expect_close(found.gradient, right.gradient);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(tanh_gelu(x), found.y)) << "with and without a gradient";
}

TEST(TanhGelu, TakesAnyShapeStrideAndNumberOfElements) {
  torch::manual_seed(0);
  for (const std::int64_t count : {0, 1, 3, 7, 8, 9, 31, 100}) {
    const at::Tensor x = torch::randn({count}), above = torch::randn({count});
    expect_close(ours(x, above).gradient, exact(x, above).gradient);
  }
  const at::Tensor table = torch::randn({40, 70, 5});
  const std::vector<at::Tensor> views = {table.transpose(0, 2), table.slice(1, 3, 60, 2),
                                         table.select(2, 4), table[0][0][0],
                                         torch::randn({6, 1}).expand({6, 9})};
  for (const at::Tensor& x : views) {
    const at::Tensor above = torch::randn(x.sizes().vec()).transpose(0, -1).contiguous();
    const at::Tensor back = x.dim() > 1 ? above.transpose(0, -1) : above;
    const Gelu found = ours(x, back), right = exact(x, back);
    expect_close(found.y, right.y);
    expect_close(found.gradient, right.gradient);
  }
}

TEST(TanhGelu, HasTheSameBitsOnAVirtualDevice) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({33, 65}), above = torch::randn({33, 65});
  const at::Device device = parse_devices("virtual:1x1MiB").at(0).torch;
  const Gelu there = ours(x.to(device), above.to(device)), here = ours(x, above);
  EXPECT_EQ(there.y.device(), device);
  EXPECT_TRUE(at::equal(there.y.cpu(), here.y));
  EXPECT_TRUE(at::equal(there.gradient.cpu(), here.gradient));
}

TEST(TanhGelu, KeepsOtherTypesAndLargeNumbers) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor x = at::linspace(-4, 4, 50).to(type);
    EXPECT_TRUE(at::equal(tanh_gelu(x), at::gelu(x, "tanh")));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor x = torch::tensor({1e4F, 1e20F, infinity, -1e4F, -1e20F, NAN});
  const at::Tensor y = tanh_gelu(x);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(y[i].item<float>(), x[i].item<float>());
  EXPECT_NEAR(y[3].item<float>(), 0, 1e-30);
  EXPECT_TRUE(std::isnan(y[5].item<float>()));
}

TEST(TanhGelu, CanBeDifferentiatedTwice) {
  torch::manual_seed(2);
  const auto second = [](auto gelu) {
    const at::Tensor x = at::linspace(-3, 3, 40).requires_grad_();
    const at::Tensor first = torch::autograd::grad({gelu(x).sum()}, {x}, {}, true, true)[0];
    return torch::autograd::grad({first.square().sum()}, {x})[0];
  };
  const at::Tensor found = second([](const at::Tensor& x) { return tanh_gelu(x); });
  const at::Tensor right = second([](const at::Tensor& x) { return at::gelu(x, "tanh"); });
  EXPECT_TRUE(at::allclose(found, right, 1e-6, 1e-6));
}

}  // namespace
}  // namespace trestle::nn
