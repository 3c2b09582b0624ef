#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "trestle/nn/layers.h"
#include "trestle/nn/loss.h"
#include "trestle/optim/factory.h"
#include "trestle/pipeline/pipeline.h"

// A training by libtorch alone, with torch::optim and torch's clipping: the oracle for pipelines
// that step optimizers.
namespace trestle::plain {

inline constexpr std::int64_t width = 6;
using Weights = std::map<std::string, at::Tensor>;

struct Training {
  bool adam = true;  // AdamW; otherwise SGD with momentum
  double max_norm = 0;
  double p = 2;
  int steps = 4;
};

// Five layers in double precision: two share a weight, one has no parameters, one is frozen.
inline nn::Layers make_net() {
  nn::Layers net(nn::Seed{3});
  const auto linear = [](bool bias, bool frozen) {
    return [=] {
      torch::nn::Linear layer(torch::nn::LinearOptions(width, width).bias(bias));
      layer->to(torch::kDouble);
      for (auto& parameter : layer->parameters()) parameter.set_requires_grad(!frozen);
      return layer;
    };
  };
  net.add("a", linear(true, false));
  net.add("b", linear(false, false));
  net.add("act", torch::nn::Tanh());
  net.add("frozen", linear(true, true));
  net.add("c", linear(true, false));
  net.tie("b.weight", "a.weight");
  return net;
}

inline at::Tensor rows(std::int64_t count, std::int64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
  return at::randn({count, width}, generator, at::TensorOptions().dtype(at::kDouble));
}
inline at::Tensor input(int step, std::int64_t count = 8) { return rows(count, 10 + step); }
inline at::Tensor target(int step, std::int64_t count = 8) { return rows(count, 20 + step); }

inline OptimizerFactory optimizer(const Training& training) {
  return [training](int, const NamedTensors& own) -> std::unique_ptr<torch::optim::Optimizer> {
    std::vector<at::Tensor> parameters;
    for (const auto& [name, tensor] : own) parameters.push_back(tensor);
    if (training.adam)
      return std::make_unique<torch::optim::AdamW>(
          parameters, torch::optim::AdamWOptions(0.05).weight_decay(0.1));
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(0.2).momentum(0.9));
  };
}

// Two steps at the first rate, then a tenth of it.
inline double rate_of(const Training& training, int step) {
  return (training.adam ? 0.05 : 0.2) * (step < 2 ? 1 : 0.1);
}

struct Outcome {
  Weights weights;
  std::vector<double> losses, norms;
};

inline Weights weights_of(const NamedTensors& named) {
  Weights weights;
  for (const auto& [name, tensor] : named) weights[name] = tensor.detach().cpu().clone();
  return weights;
}

// Skips the step `skipped`.
inline Outcome train(const Training& training, std::int64_t count = 8, int skipped = -1) {
  nn::Layers net = make_net();
  const NamedTensors named = net.named_parameters();
  std::vector<at::Tensor> parameters;
  for (const auto& [name, tensor] : named) parameters.push_back(tensor);
  const auto stepping = optimizer(training)(0, named);
  Outcome outcome;
  for (int step = 0; step < training.steps; ++step) {
    if (step == skipped) continue;
    stepping->zero_grad();
    const at::Tensor loss = (net.forward(input(step, count)) - target(step, count)).square().mean();
    loss.backward();
    outcome.losses.push_back(loss.item<double>());
    outcome.norms.push_back(torch::nn::utils::clip_grad_norm_(
        parameters, training.max_norm > 0 ? training.max_norm : 1e9, training.p));
    optim::set_learning_rate(*stepping, rate_of(training, step));
    stepping->step();
  }
  outcome.weights = weights_of(net.named_parameters());
  return outcome;
}

inline PipelineOptions options_of(const Training& training) {
  return {
      .balance = {2, 1, 1, 1},
      .micro_batches = 3,
      .optimizer = {
          .make = optimizer(training), .clip_grad_norm = training.max_norm, .clip_p = training.p}};
}

// Sets the next step's rate in the optimizers of this rank's stages.
inline void set_rates(Pipeline& pipeline, const Training& training, int step) {
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    if (!pipeline.has_stage(stage)) continue;
    if (auto* own = pipeline.optimizer(stage))
      optim::set_learning_rate(*own, rate_of(training, step));
  }
}

// The same training by a pipeline: the outcome has this rank's stages.
inline Outcome train(Pipeline& pipeline, const Training& training, bool first = true,
                     bool last = true) {
  Outcome outcome;
  for (int step = 0; step < training.steps; ++step) {
    set_rates(pipeline, training, step);
    const auto result = pipeline.step(first ? input(step) : at::Tensor(),
                                      last ? target(step) : at::Tensor(), nn::mean_squared_error());
    EXPECT_TRUE(result.stepped);
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.gradient_norm.value_or(-1));
    for (const auto& parameter : pipeline.parameters()) EXPECT_FALSE(parameter.grad().defined());
  }
  outcome.weights = weights_of(pipeline.named_parameters());
  return outcome;
}

// Compares the weights that `actual` holds.
inline void expect_same(const Outcome& expected, const Outcome& actual, double rounding = 1e-11) {
  ASSERT_EQ(expected.norms.size(), actual.norms.size());
  for (std::size_t i = 0; i < expected.norms.size(); ++i) {
    EXPECT_NEAR(expected.norms[i], actual.norms[i], rounding) << "step " << i;
    EXPECT_NEAR(expected.losses[i], actual.losses[i], rounding) << "step " << i;
  }
  for (const auto& [name, tensor] : actual.weights)
    EXPECT_LT((tensor - expected.weights.at(name)).abs().max().item<double>(), rounding) << name;
}

}  // namespace trestle::plain
