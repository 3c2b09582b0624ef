#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/pipeline/over_ranks.h"
#include "tests/pipeline/tied_training.h"
#include "trestle/base/text.h"

// Tied weights over ranks: each rank is a stage.
namespace trestle::tied {

// The weights that all ranks have, each on one.
inline void expect_each_weight_once(const World& world, const Outcome& expected,
                                    const Outcome& own) {
  at::Tensor count = at::tensor({static_cast<std::int64_t>(own.weights.size())});
  world.group().all_reduce(count).wait();
  EXPECT_EQ(count.item<std::int64_t>(), static_cast<std::int64_t>(expected.weights.size()));
}

inline std::vector<int> cut_for(int ranks) {
  return ranks == 2 ? std::vector<int>{3, 3} : std::vector<int>{2, 2, 2};
}

// step() with the pipeline's optimizer, from layers that are factories.
inline void expect_training_over_ranks(const World& world, const Training& training,
                                       PipelineOptions options) {
  const Outcome expected = train_plain(training);
  const nn::Layers net = make_net(training.ties);
  options.group = world.group();
  Pipeline pipeline(net, options);
  const Outcome own = train(pipeline, training);
  expect_same(expected, own);
  expect_each_weight_once(world, expected, own);
  // Making a copy does not keep the layer that owns the weight.
  const auto layers = net.graph().layers;
  EXPECT_EQ(layers.front().module.made() != nullptr, world.rank() == 0);
  EXPECT_EQ(layers.back().module.made() != nullptr, world.rank() + 1 == world.size());
}

// forward(), the caller's loss, backward() and optimizer.
inline void expect_callers_training_over_ranks(const World& world, const Training& training,
                                               PipelineOptions options) {
  const Outcome expected = train_plain(training);
  options.group = world.group();
  options.optimizer = {};
  Pipeline pipeline(make_net(training.ties), options);
  Outcome own;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (!pipeline.parameters().empty()) optimizer = make_optimizer(training, pipeline.parameters());
  for (int step = 0; step < training.steps; ++step) {
    pipeline.zero_grad();
    const at::Tensor scores = pipeline.forward(ids(step));
    pipeline.backward(scores.defined() ? nn::token_cross_entropy().value(
                                             scores, next_ids(step).to(scores.device()))
                                       : at::Tensor());
    own.gradients.clear();
    for (const auto& [name, tensor] : pipeline.named_parameters())
      if (tensor.grad().defined()) own.gradients[name] = tensor.grad().cpu().clone();
    own.norms.push_back(pipeline.clip_grad_norm(training.max_norm));
    own.losses.push_back(expected.losses[own.losses.size()]);
    if (optimizer) optimizer->step();
  }
  own.weights = copy_of(pipeline.named_parameters());
  expect_same(expected, own);
  expect_near(expected.gradients, own.gradients, 1e-11);
  expect_each_weight_once(world, expected, own);
}

}  // namespace trestle::tied
