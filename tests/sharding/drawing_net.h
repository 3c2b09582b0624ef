#pragma once

#include <torch/torch.h>

#include "trestle/comm/world.h"
#include "trestle/nn/layers.h"
#include "trestle/sharding/sharded.h"

// A training with random numbers and buffers: a checkpoint must restore both to resume to the same
// bits.
namespace trestle::testing {

inline nn::Layers drawing_net(int width = 37) {
  nn::Layers net(nn::Seed{5});
  net.add("in", [=] { return torch::nn::Linear(6, width); });
  net.add("norm", [=] { return torch::nn::BatchNorm1d(width); });
  net.add("drop", torch::nn::Dropout(0.4));
  net.add("mid", [=] { return torch::nn::Linear(width, 11); });
  net.add("drop2", torch::nn::Dropout(0.4));
  net.add("out", [] { return torch::nn::Linear(11, 3); });
  return net;
}

inline at::Tensor drawn_rows(int step, const World& world) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(17 * step + world.rank());
  return at::randn({4, 6}, generator, at::TensorOptions());
}

inline void draw_and_step(Sharded& sharded, torch::optim::Optimizer& optimizer, const World& world,
                          int step) {
  optimizer.zero_grad();
  sharded.backward(sharded.forward(drawn_rows(step, world)).square().mean());
  sharded.clip_grad_norm(0.1);
  optimizer.step();
}

inline bool same_bits(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i].first != b[i].first || !a[i].second.equal(b[i].second)) return false;
  return true;
}

}  // namespace trestle::testing
