// A training step of the U-Net with plain libtorch: plain tensors, the system's malloc on the CPU,
// torch::optim::RMSprop. unet_step is compared with it.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

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

struct Place {
  std::string device = "cpu";
  bool channels_last = false;
};

// Equals Python's model.to(memory_format=torch.channels_last).
void to_channels_last(torch::nn::Module& model) {
  for (auto& parameter : model.parameters()) {
    if (parameter.dim() == 4)
      parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
}

void measure(const benchmarks::Job& job, const Place& place) {
  const at::Device device(place.device);
  if (device.is_cuda() && !torch::cuda::is_available())
    throw std::runtime_error("this process sees no GPU");
  // On a GPU operators return early: read the clock when the GPU has finished.
  const auto synchronize = [&] {
    if (device.is_cuda()) torch::cuda::synchronize(device.index());
  };
  torch::manual_seed(1);
  UNet model(job.width);
  auto images = torch::rand({job.batch, 3, job.rows, job.columns}, device);
  const auto masks = torch::randint(2, {job.batch, job.rows, job.columns},
                                    at::TensorOptions(device).dtype(at::kLong));
  model->to(device);
  if (place.channels_last) {
    to_channels_last(*model);
    images = images.contiguous(at::MemoryFormat::ChannelsLast);
  }
  torch::optim::RMSprop optimizer(
      model->parameters(), torch::optim::RMSpropOptions(1e-5).weight_decay(1e-8).momentum(0.9));
  double loss = 0;
  const auto times = benchmarks::run_steps(
      job,
      [&] {
        optimizer.zero_grad();
        const auto value = loss_of(model(images), masks);
        value.backward();
        loss = value.item<double>();
        synchronize();
      },
      [&] {
        optimizer.step();
        synchronize();
      });
  std::int64_t parameters = 0;
  for (const auto& parameter : model->parameters()) parameters += parameter.numel();
  benchmarks::print({{"parameters", parameters}, {"loss", loss}}, times);
}

}  // namespace

int main(int count, char** arguments) {
  CLI::App app("A training step of the U-Net with plain libtorch.");
  benchmarks::Job job;
  Place place;
  benchmarks::add_flags(job, app);
  app.add_option("--device", place.device, "cpu or cuda:0");
  app.add_flag("--channels-last", place.channels_last, "Images and weights in that memory format");
  CLI11_PARSE(app, count, arguments);
  try {
    measure(job, place);
  } catch (const c10::Error& error) {
    std::cerr << "plain_unet_step: " << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "plain_unet_step: " << error.what() << "\n";
    return 1;
  }
}
