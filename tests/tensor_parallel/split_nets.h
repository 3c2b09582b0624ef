#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "trestle/nn/layers.h"
#include "trestle/tensor_parallel/split_plan.h"

// Nets of plain torch modules for the tests of plans.
namespace trestle::testing {

// Attention with one fused projection of queries, keys and values, and a gated MLP with one fused
// projection of gate and up. Members are typed, so their calls are bound at compile time.
struct FusedBlockImpl : torch::nn::Module {
  FusedBlockImpl(std::int64_t width, std::int64_t heads, std::int64_t inner)
      : head_size(width / heads),
        norm1(register_module("norm1", norm_of(width))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))),
        norm2(register_module("norm2", norm_of(width))),
        gate_up(register_module("gate_up", torch::nn::Linear(width, 2 * inner))),
        down(register_module("down", torch::nn::Linear(inner, width))) {}

  static torch::nn::LayerNorm norm_of(std::int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(norm1(x)).chunk(3, -1);
    const auto heads = [&](const at::Tensor& part) {
      return part.unflatten(-1, {-1, head_size}).transpose(1, 2);
    };
    const at::Tensor weights =
        (heads(parts[0]).matmul(heads(parts[1]).transpose(2, 3)) / std::sqrt(double(head_size)))
            .softmax(-1);
    const at::Tensor attended = weights.matmul(heads(parts[2])).transpose(1, 2).flatten(2);
    const at::Tensor h = x + out(attended);
    const auto gated = gate_up(norm2(h)).chunk(2, -1);
    return h + down(at::silu(gated[0]) * gated[1]);
  }

  std::int64_t head_size;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, out;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear gate_up, down;
};

inline constexpr std::int64_t words = 13, width = 8, inner = 11;

// A language model with a tied head: a vocabulary of 13 and an MLP of 11, which 2 ranks do not
// share evenly.
inline nn::Layers language_model(int blocks = 2) {
  nn::Layers net(nn::Seed{7});
  net.add("embed", [] {
    return torch::nn::Embedding(torch::nn::EmbeddingOptions(words, width).padding_idx(9));
  });
  for (int i = 0; i < blocks; ++i)
    net.add("blocks." + std::to_string(i),
            [] { return std::make_shared<FusedBlockImpl>(width, 2, inner); });
  net.add("head",
          [] { return torch::nn::Linear(torch::nn::LinearOptions(width, words).bias(false)); });
  net.tie("head.weight", "embed.weight");
  return net;
}

inline std::vector<tensor_parallel::SplitRule> language_plan() {
  using tensor_parallel::Split;
  return {
      {"embed", Split::Vocabulary},   {"blocks.*.qkv", Split::Columns, {width, width, width}, 2},
      {"blocks.*.out", Split::Rows},  {"blocks.*.gate_up", Split::Columns, {inner, inner}},
      {"blocks.*.down", Split::Rows}, {"head", Split::ColumnsGathered}};
}

// Convolutions with each layer that may stand between a column layer and its row layer, a
// concatenation of slices and a transposed convolution.
struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl()
      : conv1(register_module("conv1", conv(3, 7))),
        norm1(register_module("norm1", torch::nn::BatchNorm2d(7))),
        conv2(register_module("conv2", conv(7, 4))),
        norm2(register_module("norm2", torch::nn::BatchNorm2d(4))),
        up(register_module("up", torch::nn::ConvTranspose2d(
                                     torch::nn::ConvTranspose2dOptions(4, 8, 2).stride(2)))),
        norm3(register_module("norm3", torch::nn::GroupNorm(4, 8))),
        each(register_module(
            "each",
            torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).padding(torch::kSame).groups(8)))),
        join(register_module("join", conv(16, 5))),
        shrink(register_module(
            "shrink",
            torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(5, 6, 3).stride(2)))) {}

  static torch::nn::Conv2d conv(std::int64_t in, std::int64_t out) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = norm2(conv2(norm1(conv1(x)).relu())).relu();
    const at::Tensor wide = norm3(up(h)).relu();
    return shrink(join(at::cat({wide, each(wide).tanh()}, 1)).relu());
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d norm2;
  torch::nn::ConvTranspose2d up;
  torch::nn::GroupNorm norm3;
  torch::nn::Conv2d each, join;
  torch::nn::ConvTranspose2d shrink;
};

inline std::vector<tensor_parallel::SplitRule> conv_plan() {
  using tensor_parallel::Split;
  return {{"net.conv1", Split::Columns},     {"net.norm1", Split::Channels},
          {"net.conv2", Split::Rows},        {"net.up", Split::Columns},
          {"net.norm3", Split::Channels},    {"net.each", Split::Channels},
          {"net.join", Split::Rows, {8, 8}}, {"net.shrink", Split::ColumnsGathered}};
}

}  // namespace trestle::testing
