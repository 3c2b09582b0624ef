// A training step of the U-Net as one would write it with libtorch and nothing else: plain CPU
// tensors, the system's malloc, torch::optim::RMSprop. The peer that unet_step is held against.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "benchmarks/measured_steps.h"

namespace {

struct DoubleConvImpl : torch::nn::Module {
  DoubleConvImpl(int in, int out)
      : conv1(register_module("conv1", conv(in, out))),
        norm1(register_module("norm1", torch::nn::BatchNorm2d(out))),
        conv2(register_module("conv2", conv(out, out))),
        norm2(register_module("norm2", torch::nn::BatchNorm2d(out))) {}

  static torch::nn::Conv2d conv(int in, int out) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = norm1(conv1(x)).relu_();
    return norm2(conv2(x)).relu_();
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d norm2;
};
TORCH_MODULE(DoubleConv);

struct UNetImpl : torch::nn::Module {
  explicit UNetImpl(int width) {
    in = register_module("in", DoubleConv(3, width));
    for (int level = 0; level < 4; ++level) {
      const int channels = width << level;
      down->push_back(DoubleConv(channels, 2 * channels));
    }
    for (int level = 3; level >= 0; --level) {
      const int channels = width << level;
      up->push_back(torch::nn::ConvTranspose2d(
          torch::nn::ConvTranspose2dOptions(2 * channels, channels, 2).stride(2)));
      join->push_back(DoubleConv(2 * channels, channels));
    }
    register_module("down", down);
    register_module("up", up);
    register_module("join", join);
    out = register_module("out", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, 2, 1)));
  }

  torch::Tensor forward(torch::Tensor x) {
    std::vector<torch::Tensor> skips;
    x = in(x);
    for (const auto& module : *down) {
      skips.push_back(x);
      x = module->as<DoubleConvImpl>()->forward(torch::max_pool2d(x, 2));
    }
    for (std::size_t i = 0; i < up->size(); ++i) {
      x = up[i]->as<torch::nn::ConvTranspose2dImpl>()->forward(x);
      x = join[i]->as<DoubleConvImpl>()->forward(torch::cat({skips[3 - i], x}, 1));
    }
    return out(x);
  }

  DoubleConv in{nullptr};
  torch::nn::ModuleList down, up, join;
  torch::nn::Conv2d out{nullptr};
};
TORCH_MODULE(UNet);

// Cross-entropy + dice over the whole batch.
torch::Tensor loss_of(const torch::Tensor& scores, const torch::Tensor& target) {
  const auto probability = torch::softmax(scores, 1);
  const auto truth = torch::zeros_like(probability).scatter_(1, target.unsqueeze(1), 1.0);
  const auto common = (probability * truth).sum({0, 2, 3});
  const auto sums = probability.sum({0, 2, 3}) + truth.sum({0, 2, 3});
  const auto dice = (2 * common + 1e-6) / (sums + 1e-6);
  return torch::nn::functional::cross_entropy(scores, target) + 1 - dice.mean();
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App app("A training step of the U-Net with libtorch alone.");
  benchmarks::Job job;
  benchmarks::add_flags(job, app);
  CLI11_PARSE(app, count, arguments);

  torch::manual_seed(1);
  UNet model(job.width);
  torch::optim::RMSprop optimizer(
      model->parameters(), torch::optim::RMSpropOptions(1e-5).weight_decay(1e-8).momentum(0.9));
  const auto images = torch::rand({job.batch, 3, job.rows, job.columns});
  const auto masks = torch::randint(2, {job.batch, job.rows, job.columns});
  double loss = 0;
  const auto times = benchmarks::run_steps(
      job,
      [&] {
        optimizer.zero_grad();
        const auto value = loss_of(model(images), masks);
        value.backward();
        loss = value.item<double>();
      },
      [&] { optimizer.step(); });
  std::int64_t parameters = 0;
  for (const auto& parameter : model->parameters()) parameters += parameter.numel();
  benchmarks::print({{"parameters", parameters}, {"loss", loss}}, times);
}
