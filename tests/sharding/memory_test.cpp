// Memory and traffic of each level, by the meters of virtual devices and by counts.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/device_of_rank.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/virtual_device.h"
#include "trestle/nn/layers.h"
#include "trestle/optim/factory.h"
#include "trestle/sharding/sharded.h"

namespace trestle {
namespace {

constexpr int ranks = 4, blocks = 8, wide = 256;

nn::Layers make_wide_net() {
  nn::Layers net(nn::Seed{1});
  for (int i = 0; i < blocks; ++i) {
    net.add("linear" + std::to_string(i), [] { return torch::nn::Linear(wide, wide); });
    net.add("act" + std::to_string(i), torch::nn::GELU());
  }
  return net;
}

constexpr double parameter_count = blocks * (wide * wide + wide);
constexpr double unit_bytes = 4.0 * (wide * wide + wide);

struct Held {
  double made = 0, after_backward = 0, after_step = 0,
         peak_of_step = 0;  // bytes on rank 0's device
  ShardReport first, last;
};

// Three steps of Adam on four virtual devices.
Held train_on_virtual_devices(const ShardOptions& options) {
  install_virtual_devices({.count = ranks});
  Held held;
  spawn(ranks, [&](World& world) {
    const at::Device device = testing::device_of_rank(world.rank());
    const DeviceMesh mesh(world, {{"shard", ranks}});
    ShardOptions own = options;
    own.device = device;
    const double before = static_cast<double>(memory_usage(device).current);
    const auto current = [&] { return static_cast<double>(memory_usage(device).current) - before; };
    const nn::Layers net = make_wide_net();
    Sharded sharded(net, mesh, own);
    if (world.rank() == 0) held.made = current();
    const auto optimizer = optim::make_optimizer(sharded.parameters(), {.name = "adam"});
    const at::Tensor x = torch::randn({2, wide}).to(device);
    for (int step = 0; step < 3; ++step) {
      if (world.rank() == 0 && step == 2) held.first = sharded.report();
      if (step == 2) reset_peak_memory(device);
      optimizer->zero_grad();
      sharded.backward(sharded.forward(x).square().mean());
      if (world.rank() == 0) held.after_backward = current();
      optimizer->step();
    }
    if (world.rank() != 0) return;
    held.after_step = current();
    held.peak_of_step = static_cast<double>(memory_usage(device).peak) - before;
    held.last = sharded.report();
  });
  return held;
}

void expect_within(double measured, double formula, double share) {
  EXPECT_LT(measured, formula * (1 + share));
  EXPECT_GT(measured, formula * (1 - share));
}

TEST(ShardMemory, StateMatchesFormulaOfLevel) {
  const double p = parameter_count;
  expect_within(train_on_virtual_devices({.level = ShardLevel::None}).after_step, 16 * p, 0.05);
  expect_within(train_on_virtual_devices({.level = ShardLevel::OptimizerState}).after_step,
                (8 + 8.0 / ranks) * p, 0.05);
  expect_within(train_on_virtual_devices({.level = ShardLevel::Gradients}).after_step,
                (4 + 12.0 / ranks) * p, 0.05);
  expect_within(train_on_virtual_devices({.level = ShardLevel::Parameters}).after_step,
                16.0 / ranks * p, 0.05);
}

// A model can be created and trained on devices that cannot hold all of it.
TEST(ShardMemory, UnshardsOneUnitAfterAnother) {
  const Held held = train_on_virtual_devices({.level = ShardLevel::Parameters});
  const double p = parameter_count;
  expect_within(held.made, 4 / static_cast<double>(ranks) * p, 0.05);
  expect_within(held.after_backward, 16.0 / ranks * p, 0.05);
  // Two units' parameters (this and the next), this unit's gradients (twice while they are copied),
  // and the reduced shard.
  EXPECT_LT(held.peak_of_step, 16.0 / ranks * p + 5 * unit_bytes);
}

TEST(ShardMemory, FreesWholeGradientsAsTheyAreReduced) {
  const Held one = train_on_virtual_devices(
      {.level = ShardLevel::OptimizerState, .buckets = {.size = 1 << 18, .first = 1 << 18}});
  const Held two = train_on_virtual_devices(
      {.level = ShardLevel::Gradients, .buckets = {.size = 1 << 18, .first = 1 << 18}});
  // Half of the whole gradients, less what level OptimizerState saves: its reduced shards, a fourth
  // here, reuse their memory.
  EXPECT_LT(two.peak_of_step, one.peak_of_step - 4 * parameter_count * (1.0 / 2 - 1.0 / ranks));
}

// At once: two reduced shards and one layer's gradient on its way into its bucket, not all shards.
TEST(ShardMemory, ReducedShardsReuseMemoryOfWholeGradients) {
  const Held held = train_on_virtual_devices(
      {.level = ShardLevel::OptimizerState, .buckets = {.size = 1 << 18, .first = 1 << 18}});
  EXPECT_LT(held.peak_of_step, held.after_step + unit_bytes * (1 + 3.0 / ranks) + (1 << 16));
}

// All ranks start with rank 0's weights, which are broadcast in chunks.
TEST(ShardMemory, ConstructionDoesNotCopyAllWeights) {
  static constexpr int wide = 768, layers = 6;
  install_virtual_devices({.count = ranks});
  spawn(2, [&](World& world) {
    const at::Device device = testing::device_of_rank(world.rank());
    const DeviceMesh mesh(world, {{"shard", 2}});
    nn::Layers net(nn::Seed{1});
    for (int i = 0; i < layers; ++i)
      net.add("linear" + std::to_string(i), [] { return torch::nn::Linear(wide, wide); });
    const Bytes before = memory_usage(device).current;
    reset_peak_memory(device);
    const Sharded sharded(
        net, mesh,
        {.level = ShardLevel::Gradients, .device = device, .buckets = {.size = Bytes{2} << 20}});
    const Bytes weights = 4 * layers * (wide * wide + wide);
    EXPECT_LT(memory_usage(device).peak - before, weights + (Bytes{7} << 20));
  });
}

// Counts and bytes of collectives, as FSDP2's own tests expect them.
TEST(ShardTraffic, MatchesLevel) {
  const auto of_step = [](const ShardOptions& options) {
    const Held held = train_on_virtual_devices(options);
    return std::array<std::int64_t, 4>{
        held.last.reductions - held.first.reductions, held.last.reduced - held.first.reduced,
        held.last.gathers - held.first.gathers, held.last.gathered - held.first.gathered};
  };
  const auto p = static_cast<std::int64_t>(4 * parameter_count);
  EXPECT_EQ(of_step({.level = ShardLevel::Parameters}),
            (std::array<std::int64_t, 4>{blocks, p, 2 * blocks, 2 * p}));
  EXPECT_EQ(of_step({.level = ShardLevel::Parameters, .reshard_after_forward = false}),
            (std::array<std::int64_t, 4>{blocks, p, blocks, p}));
  EXPECT_EQ(of_step({.level = ShardLevel::Gradients, .buckets = {.size = p, .first = p}}),
            (std::array<std::int64_t, 4>{1, p, 1, p}));
  EXPECT_EQ(of_step({.level = ShardLevel::None, .buckets = {.size = p, .first = p}}),
            (std::array<std::int64_t, 4>{1, p, 0, 0}));
}

}  // namespace
}  // namespace trestle
