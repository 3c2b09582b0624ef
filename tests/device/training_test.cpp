#include <gtest/gtest.h>

#include "support.h"
#include "trestle/device/keyed_random.h"

namespace trestle {
namespace {

namespace F = torch::nn::functional;
using testing::same_bits;
using testing::virtual_device;

// Every kind of layer that the U-Net and the ResNet use: padding, batch norm, pooling, a transposed
// convolution, a concatenated skip, dropout, a linear head.
struct SmallNetImpl : torch::nn::Module {
  torch::nn::Conv2d down{torch::nn::Conv2dOptions(3, 8, 3).padding(1).bias(false)};
  torch::nn::BatchNorm2d norm{8};
  torch::nn::Conv2d deep{torch::nn::Conv2dOptions(8, 16, 3).stride(2).padding(1)};
  torch::nn::ConvTranspose2d up{torch::nn::ConvTranspose2dOptions(16, 8, 2).stride(2)};
  torch::nn::Dropout dropout{0.3};
  torch::nn::Linear head{16 * 4 * 4, 10};
  SmallNetImpl() {
    register_module("down", down);
    register_module("norm", norm);
    register_module("deep", deep);
    register_module("up", up);
    register_module("dropout", dropout);
    register_module("head", head);
  }
  at::Tensor forward(at::Tensor x) {
    x = F::pad(x, F::PadFuncOptions({1, 1, 1, 1}).mode(torch::kReflect));
    x = torch::max_pool2d(torch::relu(norm(down(x))), 2);
    const auto wide = up(torch::relu(deep(x))).slice(2, 0, 8).slice(3, 0, 8);
    x = torch::cat({x.slice(2, 0, 8).slice(3, 0, 8), wide}, 1);
    return head(dropout(torch::max_pool2d(x, 2)).flatten(1));
  }
};
TORCH_MODULE(SmallNet);

using Optimizer = std::unique_ptr<torch::optim::Optimizer>;
struct OptimizerCase {
  const char* name;
  Optimizer (*make)(std::vector<at::Tensor>);
};
void PrintTo(const OptimizerCase& value, std::ostream* out) { *out << value.name; }

struct Outcome {
  std::vector<at::Tensor> losses, tensors;
};

Outcome train(at::Device device, const OptimizerCase& optimizer_case) {
  torch::manual_seed(7);
  SmallNet net;
  const auto input = torch::randn({4, 3, 16, 16}).to(device);
  const auto target = torch::randint(0, 10, {4}).to(device);
  net->to(device);
  const Optimizer optimizer = optimizer_case.make(net->parameters());
  Outcome outcome;
  for (std::uint64_t step = 0; step < 5; ++step) {
    optimizer->zero_grad();
    at::Tensor loss;
    {
      const KeyedRandom random(device, 100 + step);
      loss = F::cross_entropy(net(input), target);
    }
    loss.backward();
    optimizer->step();
    outcome.losses.push_back(loss.detach().cpu());
  }
  for (const auto& parameter : net->parameters())
    outcome.tensors.push_back(parameter.detach().cpu());
  for (const auto& parameter : net->parameters()) outcome.tensors.push_back(parameter.grad().cpu());
  for (const auto& buffer : net->buffers()) outcome.tensors.push_back(buffer.cpu());
  return outcome;
}

class TrainingTest : public ::testing::TestWithParam<OptimizerCase> {};

TEST_P(TrainingTest, EqualsTheCpuBitForBit) {
  const at::Device device = virtual_device(1);
  const Outcome expected = train(at::kCPU, GetParam());
  const Outcome actual = train(device, GetParam());
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_TRUE(same_bits(expected.losses[i], actual.losses[i])) << "step " << i;
  }
  ASSERT_EQ(expected.tensors.size(), actual.tensors.size());
  for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
    EXPECT_TRUE(same_bits(expected.tensors[i], actual.tensors[i])) << "tensor " << i;
  }
  EXPECT_NE(expected.losses[0].item<float>(), expected.losses[4].item<float>());
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, TrainingTest,
    ::testing::Values(OptimizerCase{"sgd",
                                    [](std::vector<at::Tensor> parameters) -> Optimizer {
                                      return std::make_unique<torch::optim::SGD>(
                                          parameters,
                                          torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(
                                              1e-4));
                                    }},
                      OptimizerCase{"adam",
                                    [](std::vector<at::Tensor> parameters) -> Optimizer {
                                      return std::make_unique<torch::optim::Adam>(
                                          parameters, torch::optim::AdamOptions(1e-3));
                                    }},
                      OptimizerCase{"adamw",
                                    [](std::vector<at::Tensor> parameters) -> Optimizer {
                                      return std::make_unique<torch::optim::AdamW>(
                                          parameters, torch::optim::AdamWOptions(1e-3));
                                    }},
                      OptimizerCase{"rmsprop",
                                    [](std::vector<at::Tensor> parameters) -> Optimizer {
                                      return std::make_unique<torch::optim::RMSprop>(
                                          parameters,
                                          torch::optim::RMSpropOptions(1e-3).momentum(0.5));
                                    }}),
    [](const auto& info) { return info.param.name; });

TEST(TrainingTest, FusedOptimizersRunOnTheDevice) {
  const auto make = [](at::Device device) {
    torch::manual_seed(3);
    std::vector<at::Tensor> weights{torch::randn({5}), torch::randn({2, 3})};
    for (auto& weight : weights) weight = weight.to(device);
    return weights;
  };
  const auto step = [&](at::Device device) {
    auto weights = make(device);
    auto gradients = make(device);
    std::vector<at::Tensor> mean, square, steps;
    for (const auto& weight : weights) {
      mean.push_back(torch::zeros_like(weight));
      square.push_back(torch::zeros_like(weight));
      steps.push_back(torch::ones({}, weight.options()));
    }
    at::_fused_adamw_(weights, gradients, mean, square, {}, steps, /*lr=*/0.1, 0.9, 0.999,
                      /*weight_decay=*/0.01,
                      /*eps=*/1e-8, /*amsgrad=*/false, /*maximize=*/false);
    return weights;
  };
  const auto expected = step(at::kCPU);
  const auto actual = step(virtual_device(0));
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(expected[i], actual[i]));
}

}  // namespace
}  // namespace trestle
