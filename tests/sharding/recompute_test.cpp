// Activation checkpointing inside a sharded model: no gradient is counted twice, and parameters are
// unsharded for recomputation.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/sharding/layered_net.h"
#include "trestle/base/error.h"
#include "trestle/device/device.h"
#include "trestle/device/virtual_device.h"
#include "trestle/parallel/checkpoint_layers.h"
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

// Segments end inside the reach of the skip and between the tied layers; one begins with a layer
// that writes to its input. Layers are chosen as in a pipeline.
TEST(ShardedRecompute, LayersAndSegmentsHavePlainModelsGradients) {
  const at::Tensor x = rows(6, 1), y = rows(6, 2);
  for (const double dropout : {0.0, 0.5}) {
    const auto make = [&] { return make_layered_net(dropout); };
    const int layers = static_cast<int>(make().size());
    const NamedTensors shapes = make().named_parameters();
    std::vector<Gradients> kept;
    const auto gradients_with = [&](const ShardOptions& options) {
      std::vector<Gradients> found;
      at_each_level(2, make, options, [&](World& world, Sharded& sharded, const nn::Layers&) {
        for (int step = 0; step < 2; ++step) {
          sharded.zero_grad();
          sharded.backward(loss_of(sharded.forward(part(x, world)), part(y, world)));
        }
        const Gradients own = whole_gradients(sharded, world, shapes);
        if (world.rank() == 0) found.push_back(own);
      });
      return found;
    };
    kept = gradients_with({});
    if (dropout == 0) {
      nn::Layers plain = make();
      loss_of(plain.forward(x), y).backward();
      for (const Gradients& level : kept)
        EXPECT_LT(difference(gradients_of(plain.named_parameters()), level), 1e-14);
    }
    const auto expect_same = [&](const ShardOptions& options, const std::string& what) {
      const auto found = gradients_with(options);
      ASSERT_EQ(found.size(), kept.size());
      for (std::size_t level = 0; level < found.size(); ++level)
        EXPECT_LT(difference(kept[level], found[level]), 1e-14)
            << what << ", level " << level << ", dropout " << dropout;
    };
    for (const int segments : {1, 2, 3, layers, layers + 5})
      expect_same({.checkpoint_segments = segments}, std::to_string(segments) + " segments");
    expect_same({.wrap_layers = checkpoint_layers({"layers"})}, "layers");
    expect_same({.wrap_layers = checkpoint_layers({"middle", "join"})}, "middle and join");
  }
}

TEST(ShardedRecompute, ASegmentKeepsOnlyItsInputs) {
  install_virtual_devices({.count = 2});
  constexpr std::int64_t width = 64, batch = 512;
  const auto peak_of = [&](const ShardOptions& given) {
    const auto peaks = spawn(2, [&](World& world) {
      const at::Device device(at::kPrivateUse1, static_cast<at::DeviceIndex>(world.rank()));
      ShardOptions options = given;
      options.level = ShardLevel::Parameters;
      options.device = device;
      nn::Layers net(nn::Seed{1});
      for (int i = 0; i < 12; ++i) {
        net.add("tanh" + std::to_string(i), torch::nn::Tanh());
        net.add("linear" + std::to_string(i), [=] { return torch::nn::Linear(width, width); });
      }
      Sharded sharded(net, DeviceMesh(world, {{"shard", 2}}), options);
      const at::Tensor x = at::rand({batch, width}).to(device);
      Bytes peak = 0;
      for (int step = 0; step < 2; ++step) {
        reset_peak_memory(device);
        sharded.backward(sharded.forward(x).square().mean());
        peak = memory_usage(device).peak;
        sharded.zero_grad();
      }
      return peak;
    });
    return peaks[0];
  };
  const Bytes activation = batch * width * 4, kept = peak_of({});
  // 12 activations are kept, each the output of one layer and the input of the next one; or the
  // inputs of 4 segments and the 3 activations of one.
  EXPECT_LT(peak_of({.checkpoint_segments = 4}), kept - 5 * activation);
}

TEST(ShardedRecompute, RefusesOptionsThatAModuleCannotFollow) {
  spawn(2, [](World& world) {
    const DeviceMesh mesh(world, {{"shard", 2}});
    const auto module = std::make_shared<RecomputedImpl>(false);
    EXPECT_THROW(Sharded(module, mesh, {.checkpoint_segments = 2}), UsageError);
    EXPECT_THROW(Sharded(module, mesh, {.wrap_layers = checkpoint_layers({"layers"})}), UsageError);
    EXPECT_THROW(Sharded(blocks(false), mesh, {.checkpoint_segments = -1}), UsageError);
    EXPECT_THROW(Sharded(blocks(false), mesh, {.wrap_layers = checkpoint_layers({"blok"})}),
                 UsageError);
  });
}

}  // namespace
}  // namespace trestle::testing
