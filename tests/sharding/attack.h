#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/sharding/rows.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/sharding/sharded.h"

// Trains any torch module twice: with libtorch alone, and sharded at every level.
namespace trestle::testing {

struct Model : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

using Weights = std::map<std::string, at::Tensor>;

inline Weights weights_of(const torch::nn::Module& net) {
  Weights weights;
  for (const auto& item : net.named_parameters())
    weights[item.key()] = item.value().detach().clone();
  return weights;
}
using Call = std::function<at::Tensor(const at::Tensor&)>;  // the model's forward

// Ranks are threads that share one default generator, so one rank at a time creates a model.
inline std::mutex one_at_a_time;

template <class Net, class... Arguments>
std::shared_ptr<Model> make(Arguments... arguments) {
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(5);
  auto net = std::make_shared<Net>(arguments...);
  return net;
}

inline at::Tensor square_loss(const Call& call, const at::Tensor& x) {
  return call(x).square().mean();
}

struct Trial {
  std::function<std::shared_ptr<Model>()> model;
  // Additive: a mean over the rows of x.
  std::function<at::Tensor(const Call&, const at::Tensor& x)> loss = square_loss;
  ShardOptions options = {.buckets = {.size = 256, .first = 128}};
  int ranks = 2;
  int steps = 3;
  double tolerance = 1e-12;
  // Called in addition to a plain step: after the backward, and after the step.
  std::function<void(int step, const Call&)> after_backward = {}, after_step = {};
  std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> optimizer =
      [](std::vector<at::Tensor> parameters) {
        return std::make_shared<torch::optim::AdamW>(
            parameters, torch::optim::AdamWOptions(0.05).weight_decay(0.1));
      };
  std::int64_t rows_a_rank = 2;
  at::Device device = at::kCPU;  // A virtual device becomes the rank's own.
};

inline at::Tensor input_of(const Trial& trial, int step) {
  return rows(trial.ranks * trial.rows_a_rank, 100 + static_cast<std::uint64_t>(step));
}

inline Weights plainly(const Trial& trial) {
  const auto net = trial.model();
  const Call call = [&](const at::Tensor& x) { return net->forward(x); };
  std::vector<at::Tensor> trained;
  std::set<void*> seen;
  for (const at::Tensor& parameter : net->parameters())  // tied parameters once
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      trained.push_back(parameter);
  const auto optimizer = trial.optimizer(trained);
  for (int step = 0; step < trial.steps; ++step) {
    optimizer->zero_grad();
    trial.loss(call, input_of(trial, step)).backward();
    if (trial.after_backward) trial.after_backward(step, call);
    optimizer->step();
    if (trial.after_step) trial.after_step(step, call);
  }
  Weights weights;
  std::set<void*> known;
  for (const auto& item : net->named_parameters())  // tied parameters once
    if (known.insert(item.value().unsafeGetTensorImpl()).second)
      weights[item.key()] = item.value().detach().clone();
  return weights;
}

inline double distance(const Weights& expected, const NamedTensors& actual) {
  double worst = 0;
  std::size_t found = 0;
  for (const auto& [name, tensor] : actual) {
    const auto known = expected.find(name);
    if (known == expected.end()) continue;  // a buffer
    ++found;
    if (tensor.sizes() != known->second.sizes() || tensor.dtype() != known->second.dtype())
      return 1e9;
    if (tensor.numel() == 0) continue;
    const auto type = tensor.is_complex() ? at::kComplexDouble : at::kDouble;
    const double far = (tensor.to(type) - known->second.to(type)).abs().max().item<double>();
    worst = std::isfinite(far) ? std::max(worst, far) : 1e9;
  }
  return found == expected.size() ? worst : 1e9;
}

inline Weights sharded(const Trial& trial, World& world, ShardLevel level) {
  const DeviceMesh mesh(world, {{"shard", world.size()}});
  ShardOptions options = trial.options;
  options.level = level;
  at::Device device = trial.device;
  if (!device.is_cpu()) device.set_index(static_cast<at::DeviceIndex>(world.rank()));
  if (!device.is_cpu()) options.device = device;
  ShardedModule<Model> model(trial.model(), mesh, options);
  const Call call = [&](const at::Tensor& x) { return model.forward(x.to(device)); };
  const auto optimizer = trial.optimizer(model.parameters());
  for (int step = 0; step < trial.steps; ++step) {
    optimizer->zero_grad();
    const at::Tensor all = input_of(trial, step);
    const at::Tensor x = all.narrow(0, world.rank() * trial.rows_a_rank, trial.rows_a_rank);
    if (step % 2 == 0)
      model.backward(trial.loss(call, x));
    else
      trial.loss(call, x).backward();
    if (trial.after_backward) trial.after_backward(step, call);
    optimizer->step();
    if (trial.after_step) trial.after_step(step, call);
  }
  Weights weights;
  for (auto& [name, tensor] : model.state()) weights[name] = tensor;
  return weights;
}

// Trains at every level and compares the weights with the plain model's.
inline void expect_same(const Trial& trial) {
  const Weights expected = plainly(trial);
  for (const ShardLevel level : levels) {
    SCOPED_TRACE(std::string(to_string(level)));
    spawn(trial.ranks,
          [&](World& world) {
            const Weights weights = sharded(trial, world, level);
            EXPECT_LT(distance(expected, NamedTensors(weights.begin(), weights.end())),
                      trial.tolerance)
                << to_string(level) << ", rank " << world.rank();
          },
          {.deadline = std::chrono::seconds(20)});
  }
}

// Nets that more than one test uses.

struct TwoLinears : Model {
  TwoLinears() {
    a = register_module("a", torch::nn::Linear(width, 7));
    b = register_module("b", torch::nn::Linear(7, width));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) override { return b(torch::tanh(a(x))); }
  torch::nn::Linear a{nullptr}, b{nullptr};
};

struct InPlace : TwoLinears {
  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor y = a(x).view({-1, 7, 1}).squeeze(-1);
    y.relu_();
    at::Tensor z = b(y);
    z.add_(x).mul_(0.5);
    z.select(1, 0).mul_(2);
    return z;
  }
};

// Parameters whose memory is not contiguous.
struct Odd : Model {
  Odd() {
    const auto part = at::randn({9, 11}, at::kDouble);
    gapped = register_parameter("gapped", part.narrow(1, 2, width).narrow(0, 1, width).detach());
    turned = register_parameter("turned", at::randn({7, width}, at::kDouble).t().detach());
    number = register_parameter("number", at::full({}, 1.5, at::kDouble));
    empty = register_parameter("empty", at::empty({0, 3}, at::kDouble));
    one = register_parameter("one", at::randn({1, 1, 7}, at::kDouble).transpose(0, 2).detach());
    conv = register_module("conv", torch::nn::Conv2d(1, 2, 3));
    deep = register_module("deep", torch::nn::Conv3d(1, 2, 2));
    to(at::kDouble);
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    deep->weight.set_data(deep->weight.contiguous(at::MemoryFormat::ChannelsLast3d));
  }
  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor y = torch::tanh(x.matmul(gapped)).matmul(turned) * number * one.view({7});
    const at::Tensor image = x.unsqueeze(2).matmul(x.unsqueeze(1)).unsqueeze(1);
    y = y + conv(image.contiguous(at::MemoryFormat::ChannelsLast)).flatten(1).narrow(1, 0, 7);
    y = y + deep(image.unsqueeze(2).expand({-1, -1, 3, -1, -1})).flatten(1).narrow(1, 3, 7);
    return y.sum(1, true) + empty.sum();
  }
  at::Tensor gapped, turned, number, empty, one;
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Conv3d deep{nullptr};
};

}  // namespace trestle::testing
