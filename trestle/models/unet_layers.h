#pragma once

#include <ATen/Functions.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trestle/base/text.h"
#include "trestle/nn/layers.h"
#include "trestle/tensor_parallel/split_plan.h"

// The U-Nets of two and of three dimensions: one rule for layers and channels. Internal to this
// folder.
namespace trestle::models {

struct TwoDimensions {
  using Conv = torch::nn::Conv2d;
  using ConvTranspose = torch::nn::ConvTranspose2d;
  using BatchNorm = torch::nn::BatchNorm2d;
  using Factors = std::vector<std::int64_t>;  // of rows and columns
  static constexpr int count = 2;

  static at::Tensor pool(const at::Tensor& x, const Factors& factors) {
    return at::max_pool2d(x, factors);
  }
  static at::Tensor enlarge(const at::Tensor& x, at::IntArrayRef size) {
    return at::upsample_bilinear2d(x, size, /*align_corners=*/true);
  }
};

struct ThreeDimensions {
  using Conv = torch::nn::Conv3d;
  using ConvTranspose = torch::nn::ConvTranspose3d;
  using BatchNorm = torch::nn::BatchNorm3d;
  using Factors = std::vector<std::int64_t>;  // of slices, rows and columns
  static constexpr int count = 3;

  static at::Tensor pool(const at::Tensor& x, const Factors& factors) {
    return at::max_pool3d(x, factors);
  }
  static at::Tensor enlarge(const at::Tensor& x, at::IntArrayRef size) {
    return at::upsample_trilinear3d(x, size, /*align_corners=*/true);
  }
};

// (convolution of side 3, batch norm, ReLU) twice.
template <class Space>
struct DoubleConvImpl : torch::nn::Module {
  DoubleConvImpl(std::int64_t in, std::int64_t middle, std::int64_t out)
      : conv1(register_module("conv1", convolution(in, middle))),
        norm1(register_module("norm1", typename Space::BatchNorm(middle))),
        conv2(register_module("conv2", convolution(middle, out))),
        norm2(register_module("norm2", typename Space::BatchNorm(out))) {}

  // In place, because batch norm does not need its output again: a quarter less memory.
  at::Tensor forward(const at::Tensor& x) { return norm2(conv2(norm1(conv1(x)).relu_())).relu_(); }

  static typename Space::Conv convolution(std::int64_t in, std::int64_t out) {
    return typename Space::Conv(
        torch::nn::ConvOptions<Space::count>(in, out, 3).padding(1).bias(false));
  }

  typename Space::Conv conv1;
  typename Space::BatchNorm norm1;
  typename Space::Conv conv2;
  typename Space::BatchNorm norm2;
};

template <class Space>
struct DownImpl : DoubleConvImpl<Space> {
  DownImpl(std::int64_t in, std::int64_t out, typename Space::Factors factors)
      : DoubleConvImpl<Space>(in, out, out), factors_(std::move(factors)) {}
  at::Tensor forward(const at::Tensor& x) {
    return DoubleConvImpl<Space>::forward(Space::pool(x, factors_));
  }

 private:
  typename Space::Factors factors_;
};

template <class Space>
at::Tensor pad_and_join(const at::Tensor& x, const at::Tensor& skip) {
  std::vector<std::int64_t> padding;  // of the last dimension first
  bool fits = true;
  for (int d = Space::count + 1; d >= 2; --d) {
    const std::int64_t missing = skip.size(d) - x.size(d);
    padding.push_back(missing / 2);
    padding.push_back(missing - missing / 2);
    fits &= missing == 0;
  }
  return at::cat({skip, fits ? x : at::constant_pad_nd(x, padding)}, 1);
}

inline at::Tensor pass_through(const at::Tensor& x) { return x; }

struct UNetRule {
  std::int64_t in_channels = 0, classes = 0, width = 0;
  bool interpolate = false;  // instead of transposed convolutions
  std::uint64_t seed = 0;
};

// The ranks share the channels between the two convolutions of each pair, and the output channels
// of the transposed convolutions, which are gathered.
inline std::vector<tensor_parallel::SplitRule> unet_split_plan(bool interpolate) {
  using tensor_parallel::Split;
  std::vector<tensor_parallel::SplitRule> plan = {{.layer = "*.conv1", .split = Split::Columns},
                                                  {.layer = "*.norm1", .split = Split::Channels},
                                                  {.layer = "*.conv2", .split = Split::Rows}};
  if (!interpolate) plan.push_back({.layer = "up*_t", .split = Split::ColumnsGathered});
  return plan;
}

// `factors` has the pooling factors of each level from the top.
template <class Space>
nn::Layers unet_layers(const UNetRule& rule, const std::vector<typename Space::Factors>& factors) {
  const auto double_conv = [](std::int64_t in, std::int64_t middle, std::int64_t out) {
    return [=] { return std::make_shared<DoubleConvImpl<Space>>(in, middle, out); };
  };
  const std::int64_t w = rule.width;
  const int depth = static_cast<int>(factors.size());
  nn::Layers net(nn::Seed{rule.seed});
  net.add("in", double_conv(rule.in_channels, w, w));
  std::int64_t channels = w;
  for (int level = 1; level <= depth; ++level) {
    net.add(text("cat", level), pass_through).keep_output(text("skip", level));
    // Without a transposed convolution nothing halves the channels, so the deepest level has the
    // same number of channels as the level above.
    const std::int64_t out = rule.interpolate && level == depth ? channels : 2 * channels;
    net.add(text("down", level), [=, pooled = factors[static_cast<std::size_t>(level - 1)]] {
      return std::make_shared<DownImpl<Space>>(channels, out, pooled);
    });
    channels = out;
  }
  for (int step = 1; step <= depth; ++step) {
    const std::int64_t skip = w << (depth - step);  // channels of the concatenated skip
    const typename Space::Factors& enlarged = factors[static_cast<std::size_t>(depth - step)];
    const std::string name = text("up", step), from = text("skip", depth + 1 - step);
    if (rule.interpolate) {
      net.add(name + "_t", [enlarged](const at::Tensor& x) {
        std::vector<std::int64_t> size;
        for (std::size_t d = 0; d < enlarged.size(); ++d)
          size.push_back(enlarged[d] * x.size(static_cast<std::int64_t>(d) + 2));
        return Space::enlarge(x, size);
      });
      net.add(name + "_pop", pad_and_join<Space>).take(from);
      // The reference program's widths, which differ from those of the best known U-Net.
      const std::int64_t out = step == depth ? w : skip / 2;
      const std::int64_t middle = step == depth ? w : out / 2;
      net.add(name + "_conv", double_conv(channels + skip, middle, out));
      channels = out;
    } else {
      net.add(name + "_t", [=] {
        return typename Space::ConvTranspose(
            torch::nn::ConvTransposeOptions<Space::count>(channels, channels / 2, enlarged)
                .stride(enlarged));
      });
      net.add(name + "_pop", pad_and_join<Space>).take(from);
      net.add(name + "_conv", double_conv(channels / 2 + skip, skip, skip));
      channels = skip;
    }
  }
  net.add("out", [channels, classes = rule.classes] {
    return typename Space::Conv(torch::nn::ConvOptions<Space::count>(channels, classes, 1));
  });
  return net;
}

}  // namespace trestle::models
