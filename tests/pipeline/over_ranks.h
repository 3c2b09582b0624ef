#pragma once

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "trestle/comm/threads/spawn.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/loss.h"
#include "trestle/pipeline/pipeline.h"

// Pipelines over thread ranks.
namespace trestle::support {

inline bool is_last(const World& world) { return world.rank() + 1 == world.size(); }

inline PipelineOptions over(const World& world, PipelineOptions options = {}) {
  options.group = world.group();
  options.deadline = std::chrono::seconds(20);
  return options;
}

// Calls a pipeline over two ranks with batches whose messages fit into the least first part, into a
// larger one, and into none (message_header.h), and compares each call with the plain model.
inline void expect_plain_numbers_for_changing_messages(const World& world) {
  const auto make = [] {
    nn::Layers net(nn::Seed{3});
    net.add("first", [] { return torch::nn::Linear(8, 64); });
    net.add("act", [](at::Tensor x) { return x.tanh(); });
    net.add("second", [] { return torch::nn::Linear(64, 8); });
    return net;
  };
  nn::Layers net = make(), plain = make();
  Pipeline pipeline(net, over(world, {.balance = {2, 1}, .micro_batches = 2}));
  const bool first = world.rank() == 0, last = is_last(world);
  for (const int samples : {8, 800, 800, 6000, 800, 8, 8, 6000, 6000, 800, 800}) {
    const at::Tensor x = torch::linspace(-1, 1, samples * 8).view({samples, 8}), y = x.flip(0);
    for (const auto& parameter : pipeline.parameters()) parameter.mutable_grad().reset();
    for (const auto& parameter : plain.parameters()) parameter.mutable_grad().reset();
    const double loss =
        pipeline.step(first ? x : at::Tensor(), last ? y : at::Tensor(), nn::mean_squared_error())
            .loss;
    const at::Tensor expected = torch::mse_loss(plain.forward(x), y);
    expected.backward();
    EXPECT_NEAR(loss, expected.item<double>(), 1e-6) << samples;
    std::map<std::string, at::Tensor> plain_gradients;
    for (const auto& [name, parameter] : plain.named_parameters())
      plain_gradients.emplace(name, parameter.grad());
    for (const auto& [name, parameter] : pipeline.named_parameters())
      EXPECT_TRUE(at::allclose(parameter.grad(), plain_gradients.at(name), 1e-4, 1e-6))
          << name << " of " << samples;
    const at::Tensor output = pipeline.evaluate(first ? x.narrow(0, 0, 8) : at::Tensor());
    if (!last) continue;
    EXPECT_TRUE(at::allclose(output, plain.forward(x.narrow(0, 0, 8)), 1e-5, 1e-6)) << samples;
  }
}

// The message of each rank's exception, "" for none.
template <class Call>
std::vector<std::string> messages_of_ranks(
    int ranks, const Call& call, std::chrono::milliseconds deadline = std::chrono::seconds(20)) {
  return spawn(ranks,
               [&](World& world) -> std::string {
                 try {
                   call(world);
                   return "";
                 } catch (const std::exception& error) {
                   return error.what();
                 }
               },
               {.deadline = deadline});
}

}  // namespace trestle::support
