// Activation checkpointing inside a sharded model: no gradient is counted twice, and parameters are
// unsharded for recomputation.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/sharding/layered_net.h"
#include "trestle/recompute/checkpoint.h"

namespace trestle::testing {
namespace {

struct RecomputedImpl : torch::nn::Module {
  explicit RecomputedImpl(bool recomputes) : recomputes(recomputes) {
    a = register_module("a", torch::nn::Linear(6, 10));
    b = register_module("b", torch::nn::Linear(10, 6));
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto inner = [this](const at::Tensor& y) { return b(torch::tanh(a(y))); };
    return x + (recomputes ? nn::checkpoint(inner, x) : inner(x));
  }
  torch::nn::Linear a{nullptr}, b{nullptr};
  bool recomputes;
};

nn::Layers blocks(bool recompute) {
  nn::Layers net(nn::Seed{9});
  for (int i = 0; i < 4; ++i)
    net.add("block" + std::to_string(i),
            [=] { return std::make_shared<RecomputedImpl>(recompute); });
  return net;
}

TEST(ShardedRecompute, HasPlainModelsGradients) {
  const at::Tensor x = rows(6, 1), y = rows(6, 2);
  nn::Layers plain = blocks(false);
  loss_of(plain.forward(x), y).backward();
  const NamedTensors shapes = plain.named_parameters();
  at_each_level(
      2, [] { return blocks(true); }, {},
      [&](World& world, Sharded& sharded, const nn::Layers&) {
        for (int step = 0; step < 3; ++step) {
          sharded.zero_grad();
          loss_of(sharded.forward(part(x, world)), part(y, world)).backward();
          EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)),
                    1e-14);
        }
      });
}

// A sharded layer inside a checkpointed function is all-gathered again for recomputation and freed
// only by the backward.
TEST(ShardedRecompute, UnshardsUnitsInsideCheckpointedFunction) {
  const at::Tensor x = rows(6, 1), y = rows(6, 2);
  nn::Layers plain = blocks(false);
  loss_of(plain.forward(x), y).backward();
  const NamedTensors shapes = plain.named_parameters();
  at_each_level(
      2, [] { return blocks(false); }, {},
      [&](World& world, Sharded& sharded, const nn::Layers& net) {
        for (int step = 0; step < 2; ++step) {
          sharded.zero_grad();
          const at::Tensor out =
              nn::checkpoint([&](const at::Tensor& z) { return sharded.forward(z); },
                             part(x, world).clone().requires_grad_());
          loss_of(out, part(y, world)).backward();
          EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)),
                    1e-14);
          if (sharded.options().level == ShardLevel::Parameters) {
            EXPECT_ANY_THROW(net.named_parameters()[0].second.sum().item<double>());
          }
        }
      });
}

// A recomputed call counts once: later micro-batches draw the same numbers as without
// recomputation.
TEST(ShardedRecompute, DropoutAfterRecomputedCallIsUnchanged) {
  const at::Tensor x = rows(6, 1), y = rows(6, 2);
  const auto net = [] {
    nn::Layers made = blocks(false);
    made.add("dropout", torch::nn::Dropout(0.5));
    return made;
  };
  const NamedTensors shapes = blocks(false).named_parameters();
  std::vector<std::vector<std::map<std::string, at::Tensor>>> found;
  for (const bool recompute : {false, true}) {
    auto& levels = found.emplace_back();
    at_each_level(2, net, {}, [&](World& world, Sharded& sharded, const nn::Layers&) {
      const auto call = [&](const at::Tensor& z) { return sharded.forward(z); };
      for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
        std::optional<Sharded::NoSync> no_sync;
        if (micro_batch < 2) no_sync.emplace(sharded.no_sync());
        const at::Tensor in = part(x, world).clone().requires_grad_();
        loss_of(recompute ? nn::checkpoint(call, in) : call(in), part(y, world)).backward();
      }
      const auto gradients = whole_gradients(sharded, world, shapes);
      if (world.rank() == 0) levels.push_back(gradients);
    });
  }
  ASSERT_EQ(found[0].size(), found[1].size());
  for (std::size_t level = 0; level < found[0].size(); ++level)
    EXPECT_LT(difference(found[0][level], found[1][level]), 1e-14) << level;
}

}  // namespace
}  // namespace trestle::testing
