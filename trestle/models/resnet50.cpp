#include "trestle/models/resnet50.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/convolution.h"

namespace trestle::models {

namespace {

constexpr std::int64_t expansion = 4;  // ratio of a block's output channels to its inner ones

torch::nn::Conv2d initialized_convolution(std::int64_t in, std::int64_t out, int kernel,
                                          int stride) {
  torch::nn::Conv2d made = convolution(in, out, kernel, stride);
  torch::nn::init::kaiming_normal_(made->weight, 0, torch::kFanOut, torch::kReLU);
  return made;
}

struct BottleneckImpl : torch::nn::Module {
  BottleneckImpl(std::int64_t in, std::int64_t inner, int stride)
      : conv1(register_module("conv1", initialized_convolution(in, inner, 1, 1))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(inner))),
        conv2(register_module("conv2", initialized_convolution(inner, inner, 3, stride))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(inner))),
        conv3(register_module("conv3", initialized_convolution(inner, expansion * inner, 1, 1))),
        bn3(register_module("bn3", torch::nn::BatchNorm2d(expansion * inner))) {
    if (stride == 1 && in == expansion * inner) return;
    downsample = register_module(
        "downsample",
        torch::nn::Sequential(initialized_convolution(in, expansion * inner, 1, stride),
                              torch::nn::BatchNorm2d(expansion * inner)));
  }

  // In place, because batch norm does not need its output again.
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = bn1(conv1(x)).relu_();
    y = bn2(conv2(y)).relu_();
    y = bn3(conv3(y));
    return (y += downsample ? downsample->forward(x) : x).relu_();
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Conv2d conv3;
  torch::nn::BatchNorm2d bn3;
  torch::nn::Sequential downsample = nullptr;
};

at::Tensor relu(const at::Tensor& x) { return at::relu(x); }
at::Tensor pool(const at::Tensor& x) { return at::max_pool2d(x, 3, 2, 1); }
at::Tensor average(const at::Tensor& x) { return at::adaptive_avg_pool2d(x, {1, 1}).flatten(1); }

}  // namespace

nn::Layers resnet50(const ResNet50Options& options) {
  const std::int64_t w = options.width;
  if (w < 1 || options.in_channels < 1 || options.classes < 1) {
    throw UsageError(text("a ResNet-50 of width ", w, ", ", options.in_channels,
                          " input channels and ", options.classes, " classes cannot be built"),
                     {.hint = "All must be positive."});
  }
  nn::Layers net(nn::Seed{options.seed});
  net.add("conv1", [=] { return initialized_convolution(options.in_channels, w, 7, 2); });
  net.add("bn1", [=] { return torch::nn::BatchNorm2d(w); });
  net.add("relu", relu);
  net.add("maxpool", pool);
  std::int64_t in = w;
  int stage = 0;
  for (const int blocks : {3, 4, 6, 3}) {
    const std::int64_t inner = w << stage++;
    for (int block = 0; block < blocks; ++block) {
      const int stride = stage > 1 && block == 0 ? 2 : 1;
      net.add(text("layer", stage, ".", block),
              [=] { return std::make_shared<BottleneckImpl>(in, inner, stride); });
      in = expansion * inner;
    }
  }
  net.add("avgpool", average);
  net.add("fc", [in, classes = options.classes] { return torch::nn::Linear(in, classes); });
  return net;
}

std::vector<tensor_parallel::SplitRule> resnet50_plan() {
  using tensor_parallel::Split;
  return {{.layer = "layer*.conv2", .split = Split::Columns},
          {.layer = "layer*.bn2", .split = Split::Channels},
          {.layer = "layer*.conv3", .split = Split::Rows}};
}

}  // namespace trestle::models
