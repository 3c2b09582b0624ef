#include "benchmarks/deep_unet.h"

#include <torch/nn.h>

#include <string>

namespace benchmarks {
namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl(int in, int out)
      : conv(register_module(
            "conv",
            torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(out))) {}
  at::Tensor forward(const at::Tensor& x) { return norm(conv(x)).relu_(); }

  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
};

at::Tensor halve(const at::Tensor& x) { return at::max_pool2d(x, 2); }
at::Tensor join(const at::Tensor& x, const at::Tensor& skip) { return at::cat({skip, x}, 1); }

// The first block changes the number of channels. Returns the entry of the last block.
trestle::nn::Layers::Added add_blocks(trestle::nn::Layers& net, const std::string& name, int in,
                                      int out, int blocks) {
  const auto add = [&](int number, int from) {
    return net.add(name + std::to_string(number),
                   [=] { return std::make_shared<BlockImpl>(from, out); });
  };
  auto last = add(1, in);
  for (int number = 2; number <= blocks; ++number) last = add(number, out);
  return last;
}

}  // namespace

trestle::nn::Layers deep_unet(int channels, int blocks) {
  constexpr int levels = 4;  // without the deepest one
  trestle::nn::Layers net;
  int in = 3;
  for (int level = 0; level < levels; ++level) {
    const std::string name = "down" + std::to_string(level);
    const int out = channels << level;
    add_blocks(net, name + "_", in, out, blocks).keep_output("skip" + std::to_string(level));
    net.add(name + "_halve", halve);
    in = out;
  }
  add_blocks(net, "deepest_", in, channels << levels, blocks);
  for (int level = levels - 1; level >= 0; --level) {
    const std::string name = "up" + std::to_string(level);
    const int out = channels << level;
    net.add(name + "_double", [=] {
      return torch::nn::ConvTranspose2d(
          torch::nn::ConvTranspose2dOptions(2 * out, out, 2).stride(2));
    });
    net.add(name + "_join", join).take("skip" + std::to_string(level));
    add_blocks(net, name + "_", 2 * out, out, blocks);
  }
  net.add("out", [=] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, 2, 1)); });
  return net;
}

}  // namespace benchmarks
