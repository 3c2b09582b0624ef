#include "trestle/models/resnet.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/convolution.h"

namespace trestle::models {

namespace {

auto conv_factory(std::int64_t in, std::int64_t out, int kernel, int stride) {
  return [=] { return convolution(in, out, kernel, stride); };
}

auto norm_factory(std::int64_t channels) {
  return [=] { return torch::nn::BatchNorm2d(channels); };
}

at::Tensor pool_layer(const at::Tensor& x) { return at::max_pool2d(x, 3, 2, 1); }
at::Tensor relu_layer(const at::Tensor& x) { return at::relu(x); }
at::Tensor flatten_layer(const at::Tensor& x) { return x.flatten(1); }
at::Tensor add_layer(const at::Tensor& x, const at::Tensor& identity) { return x + identity; }

struct InputLayerImpl : torch::nn::Module {
  InputLayerImpl(std::int64_t in, std::int64_t out)
      : conv1(register_module("conv1", convolution(in, out, 7, 2))),
        norm1(register_module("norm1", torch::nn::BatchNorm2d(out))) {}
  at::Tensor forward(const at::Tensor& x) { return pool_layer(relu_layer(norm1(conv1(x)))); }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm1;
};

// Adds the block's input, converted to x's shape.
struct DownsampleAddImpl : torch::nn::Module {
  DownsampleAddImpl(std::int64_t in, std::int64_t out, int stride)
      : conv1(register_module("conv", convolution(in, out, 1, stride))),
        norm1(register_module("norm", torch::nn::BatchNorm2d(out))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& identity) {
    return x + norm1(conv1(identity));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm1;
};

struct BasicBlockImpl : torch::nn::Module {
  BasicBlockImpl(std::int64_t in, std::int64_t out, int stride)
      : conv1(register_module("conv1", convolution(in, out, 3, stride))),
        norm1(register_module("norm1", torch::nn::BatchNorm2d(out))),
        conv2(register_module("conv2", convolution(out, out, 3, 1))),
        norm2(register_module("norm2", torch::nn::BatchNorm2d(out))) {
    if (stride != 1) {
      downsample = register_module("add", std::make_shared<DownsampleAddImpl>(in, out, stride));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = norm2(conv2(relu_layer(norm1(conv1(x)))));
    return relu_layer(downsample ? downsample->forward(y, x) : add_layer(y, x));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d norm2;
  std::shared_ptr<DownsampleAddImpl> downsample;
};

struct OutputLayerImpl : torch::nn::Module {
  OutputLayerImpl(std::int64_t in, std::int64_t out)
      : linear(register_module("linear", torch::nn::Linear(in, out))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(flatten_layer(x)); }

  torch::nn::Linear linear;
};

nn::Layers flat_block(std::int64_t in, std::int64_t out, int stride) {
  nn::Layers block;
  block.add("conv1", conv_factory(in, out, 3, stride)).keep_input("identity");
  block.add("norm1", norm_factory(out));
  block.add("relu1", relu_layer);
  block.add("conv2", conv_factory(out, out, 3, 1));
  block.add("norm2", norm_factory(out));
  if (stride == 1) {
    block.add("add", add_layer).take("identity");
  } else {
    block.add("add", [=] { return std::make_shared<DownsampleAddImpl>(in, out, stride); })
        .take("identity");
  }
  block.add("relu2", relu_layer);
  return block;
}

void check_options(const ResNetOptions& options) {
  if (options.width >= 1 && options.in_channels >= 1 && options.classes >= 1) return;
  throw UsageError(text("a ResNet-18 of width ", options.width, ", ", options.in_channels,
                        " input channels and ", options.classes, " classes cannot be built"),
                   {.hint = "All must be positive."});
}

// Calls make_block(name, in, out, stride) for the eight blocks.
template <class MakeBlock>
void for_each_block(std::int64_t width, MakeBlock make_block) {
  std::int64_t in = width;
  for (int stage = 1; stage <= 4; ++stage) {
    const std::int64_t out = width << (stage - 1);
    for (int block = 1; block <= 2; ++block) {
      make_block(text("basic_block", stage, block), in, out, stage > 1 && block == 1 ? 2 : 1);
      in = out;
    }
  }
}

}  // namespace

nn::Layers resnet18(const ResNetOptions& options) {
  check_options(options);
  nn::Layers net(nn::Seed{options.seed});
  net.add("input_layer",
          [=] { return std::make_shared<InputLayerImpl>(options.in_channels, options.width); });
  for_each_block(options.width,
                 [&](const std::string& name, std::int64_t in, std::int64_t out, int stride) {
                   net.add(name, [=] { return std::make_shared<BasicBlockImpl>(in, out, stride); });
                 });
  net.add("output_layer",
          [=] { return std::make_shared<OutputLayerImpl>(8 * options.width, options.classes); });
  return net;
}

nn::Layers resnet18_flat(const ResNetOptions& options) {
  check_options(options);
  nn::Layers input;
  input.add("conv1", conv_factory(options.in_channels, options.width, 7, 2));
  input.add("norm1", norm_factory(options.width));
  input.add("relu", relu_layer);
  input.add("pool", pool_layer);
  nn::Layers output;
  output.add("flatten", flatten_layer);

  nn::Layers net(nn::Seed{options.seed});
  net.add("input_layer", input);
  for_each_block(options.width, [&](const std::string& name, std::int64_t in, std::int64_t out,
                                    int stride) { net.add(name, flat_block(in, out, stride)); });
  output.add("linear", [=] { return torch::nn::Linear(8 * options.width, options.classes); });
  net.add("output_layer", output);
  return net;
}

std::vector<tensor_parallel::SplitRule> resnet18_plan() {
  using tensor_parallel::Split;
  return {{.layer = "basic_block*.conv1", .split = Split::Columns},
          {.layer = "basic_block*.norm1", .split = Split::Channels},
          {.layer = "basic_block*.conv2", .split = Split::Rows}};
}

}  // namespace trestle::models
