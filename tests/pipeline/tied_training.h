#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trestle/nn/layers.h"
#include "trestle/nn/token_loss.h"
#include "trestle/pipeline/pipeline.h"

// Small language models with tied weights, and their training by libtorch alone: one tensor that
// both layers use, torch::optim and torch's clipping. It shares no code with the pipeline but the
// initial weights.
namespace trestle::tied {

inline constexpr std::int64_t words = 13, width = 6;
using Weights = std::map<std::string, at::Tensor>;

// Which weights are tied to the embedding's.
enum class Ties { Head, Three, Two, HeadOwns };

inline auto linear(std::int64_t in, std::int64_t out, bool bias) {
  return [=] {
    torch::nn::Linear layer(torch::nn::LinearOptions(in, out).bias(bias));
    layer->to(torch::kDouble);
    return layer;
  };
}

// embed, a, b, middle, c, head: 6 layers.
//   Head: head = embed. Three: head = middle = embed. Two: head = embed, c = a.
//   HeadOwns: embed = head, which owns the weight.
inline nn::Layers make_net(Ties ties = Ties::Head) {
  nn::Layers net(nn::Seed{5});
  net.add("embed", [] {
    torch::nn::Embedding layer(words, width);
    layer->to(torch::kDouble);
    return layer;
  });
  net.add("a", linear(width, width, true));
  net.add("b", [] { return torch::nn::GELU(); });
  if (ties == Ties::Three) {  // uses the table twice: to scores and back to vectors
    net.add("middle", linear(width, words, false));
    net.add("c", linear(words, width, true));
    net.tie("middle.weight", "embed.weight");
  } else {
    net.add("middle", linear(width, width, true));
    net.add("c", linear(width, width, false));
  }
  net.add("head", linear(width, words, false));
  if (ties == Ties::HeadOwns)
    net.tie("embed.weight", "head.weight");
  else
    net.tie("head.weight", "embed.weight");
  if (ties == Ties::Two) net.tie("c.weight", "a.weight");
  return net;
}

struct Training {
  Ties ties = Ties::Head;
  bool adam = true;  // AdamW; otherwise SGD with momentum
  double max_norm = 0;
  int steps = 3;
  bool trains_table = true;
};

inline at::Tensor ids(int step, std::int64_t count = 8) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(40 + step));
  return at::randint(0, words, {count, 4}, generator, at::TensorOptions().dtype(at::kLong));
}
inline at::Tensor next_ids(int step, std::int64_t count = 8) { return ids(step + 100, count); }

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Training& training, const std::vector<at::Tensor>& parameters) {
  if (training.adam)
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(0.05).weight_decay(0.1));
  return std::make_unique<torch::optim::SGD>(
      parameters, torch::optim::SGDOptions(0.2).momentum(0.9).weight_decay(0.01));
}

inline OptimizerFactory optimizer(const Training& training) {
  return [training](int, const NamedTensors& own) {
    return make_optimizer(training, without_names(own));
  };
}

inline std::string table_of(Ties ties) {
  return ties == Ties::HeadOwns ? "head.weight" : "embed.weight";
}

inline Weights copy_of(const NamedTensors& named) {
  Weights weights;
  for (const auto& [name, tensor] : named) weights[name] = tensor.detach().cpu().clone();
  return weights;
}

struct Outcome {
  Weights weights, gradients;  // the gradients of the last step, before clipping
  std::vector<double> losses, norms;
};

// The same functions with plain tensors.
class PlainModel {
 public:
  explicit PlainModel(Ties ties) : ties_(ties) {
    const nn::Layers net = make_net(ties);
    for (const auto& [name, tensor] : net.named_parameters())
      weights_.emplace_back(name, tensor.detach().clone().requires_grad_());
  }
  at::Tensor& operator[](const std::string& name) {
    for (auto& [own, tensor] : weights_)
      if (own == name) return tensor;
    throw std::runtime_error(name);
  }
  const NamedTensors& named() const { return weights_; }

  at::Tensor scores(const at::Tensor& input) {
    auto& w = *this;
    const at::Tensor table = w[table_of(ties_)];
    at::Tensor x = at::embedding(table, input);
    x = at::gelu(at::linear(x, w["a.weight"], w["a.bias"]));
    if (ties_ == Ties::Three) {
      x = at::linear(at::linear(x, table), w["c.weight"], w["c.bias"]);
    } else {
      x = at::linear(x, w["middle.weight"], w["middle.bias"]);
      x = at::linear(x, w[ties_ == Ties::Two ? "a.weight" : "c.weight"]);
    }
    return at::linear(x, table);
  }
  at::Tensor loss(const at::Tensor& input, const at::Tensor& target) {
    return at::cross_entropy_loss(scores(input).reshape({-1, words}), target.reshape({-1}));
  }

 private:
  Ties ties_;
  NamedTensors weights_;
};

// `count` samples a step. Skips the step `skipped`.
inline Outcome train_plain(const Training& training, std::int64_t count = 8, int skipped = -1) {
  PlainModel model(training.ties);
  if (!training.trains_table) model[table_of(training.ties)].set_requires_grad(false);
  const auto stepping = make_optimizer(training, without_names(model.named()));
  Outcome outcome;
  for (int step = 0; step < training.steps; ++step) {
    if (step == skipped) continue;
    stepping->zero_grad();
    const at::Tensor loss = model.loss(ids(step, count), next_ids(step, count));
    loss.backward();
    outcome.gradients.clear();
    for (const auto& [name, tensor] : model.named())
      if (tensor.grad().defined()) outcome.gradients[name] = tensor.grad().clone();
    outcome.losses.push_back(loss.item<double>());
    outcome.norms.push_back(torch::nn::utils::clip_grad_norm_(
        without_names(model.named()), training.max_norm > 0 ? training.max_norm : 1e9));
    stepping->step();
  }
  outcome.weights = copy_of(model.named());
  return outcome;
}

inline PipelineOptions options_of(const Training& training, const std::vector<int>& balance) {
  return {.balance = balance,
          .micro_batches = 3,
          .optimizer = {.make = optimizer(training), .clip_grad_norm = training.max_norm}};
}

// Freezes the table where it is on this rank.
inline void freeze_table(Pipeline& pipeline, const Training& training) {
  if (training.trains_table) return;
  for (const auto& [name, tensor] : pipeline.named_parameters())
    if (name == table_of(training.ties)) tensor.set_requires_grad(false);
}

// With the pipeline's optimizer. The outcome has the weights of this rank.
inline Outcome train(Pipeline& pipeline, const Training& training) {
  freeze_table(pipeline, training);
  Outcome outcome;
  for (int step = 0; step < training.steps; ++step) {
    const auto result = pipeline.step(ids(step), next_ids(step), nn::token_cross_entropy());
    EXPECT_TRUE(result.stepped);
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.gradient_norm.value_or(-1));
    for (const auto& parameter : pipeline.parameters()) EXPECT_FALSE(parameter.grad().defined());
  }
  outcome.weights = copy_of(pipeline.named_parameters());
  return outcome;
}

inline void expect_near(const Weights& expected, const Weights& actual, double rounding) {
  for (const auto& [name, tensor] : actual) {
    ASSERT_TRUE(expected.contains(name)) << name;
    EXPECT_LT((tensor - expected.at(name)).abs().max().item<double>(), rounding) << name;
  }
}

inline void expect_same(const Outcome& expected, const Outcome& actual, double rounding = 1e-11) {
  ASSERT_EQ(expected.norms.size(), actual.norms.size());
  for (std::size_t i = 0; i < expected.norms.size(); ++i) {
    EXPECT_NEAR(expected.norms[i], actual.norms[i], rounding) << "step " << i;
    EXPECT_NEAR(expected.losses[i], actual.losses[i], rounding) << "step " << i;
  }
  expect_near(expected.weights, actual.weights, rounding);
}

}  // namespace trestle::tied
