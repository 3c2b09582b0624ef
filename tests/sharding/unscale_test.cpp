// fp16's loss scale over ranks: all ranks decide alike.
#include "trestle/sharding/unscale.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "tests/sharding/norm_net.h"
#include "tests/support/device_of_rank.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/virtual_device.h"

namespace trestle::testing {
namespace {

namespace F = torch::nn::functional;

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : tensors) all.push_back(tensor.detach().clone());
  return all;
}

// Behaviours 28 and 37: `bad` occurs in one rank's shard only.
TEST(ShardedScaler, InfinityOnOneRankSkipsStepOnAllRanks) {
  for (const ShardLevel level : sharded_levels)
    for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")})
      spawn(3, [&](World& world) {
        const DeviceMesh mesh(world, {{"shard", 3}});
        Sharded sharded(make_norm_net(), mesh,
                        {.level = level, .precision = {.parameters = at::kBFloat16}});
        torch::optim::SGD optimizer(sharded.parameters(), 0.1);
        precision::GradientScaler scaler({.initial_scale = 1024, .growth_interval = 2});
        std::vector<double> scales;
        for (int step = 0; step < 5; ++step) {
          optimizer.zero_grad();
          const at::Tensor y = sharded.forward(norm_rows(step)).to(at::kFloat);
          sharded.backward(scaler.scale(F::cross_entropy(y, norm_classes(step))));
          const bool spoilt = step == 1 || step == 2;
          if (spoilt && world.rank() == 2)
            for (at::Tensor& shard : sharded.parameters())
              if (shard.numel() > 0) shard.mutable_grad()[0] = bad;
          const auto before = copies_of(sharded.parameters());
          const UnscaledGradients unscaled = unscale(scaler, sharded, {.max_norm = 1});
          EXPECT_EQ(unscaled.finite, !spoilt);
          EXPECT_EQ(std::isfinite(unscaled.norm), !spoilt);
          if (unscaled.finite) optimizer.step();
          bool changed = false;
          for (std::size_t i = 0; i < before.size(); ++i)
            changed |= !before[i].equal(sharded.parameters()[i].detach());
          EXPECT_EQ(changed, !spoilt);
          scaler.update();
          scales.push_back(scaler.scale());
        }
        EXPECT_THAT(scales, ::testing::ElementsAre(1024, 512, 256, 256, 512));
        const auto states = world.group().all_gather_bytes(std::to_string(scaler.scale()));
        for (const std::string& state : states) EXPECT_EQ(state, states[0]);
      });
}

// Equals clip_grad_norm() of gradients that were never scaled.
TEST(ShardedScaler, ClipsByGlobalNorm) {
  for (const ShardLevel level : {ShardLevel::None, ShardLevel::OptimizerState,
                                 ShardLevel::Gradients, ShardLevel::Parameters})
    for (const double p : {1.0, 2.0, std::numeric_limits<double>::infinity()})
      spawn(2, [&](World& world) {
        const DeviceMesh mesh(world, {{"shard", 2}});
        const auto clipped = [&](bool scaled) {
          Sharded sharded(make_norm_net(), mesh, {.level = level});
          precision::GradientScaler scaler;
          const at::Tensor loss = F::cross_entropy(sharded.forward(norm_rows(1)), norm_classes(1));
          sharded.backward(scaled ? scaler.scale(loss) : loss);
          const double norm = scaled ? unscale(scaler, sharded, {.max_norm = 0.01, .p = p}).norm
                                     : sharded.clip_grad_norm(0.01, {.p = p});
          std::vector<at::Tensor> gradients = {at::full({1}, norm)};
          for (const at::Tensor& own : sharded.parameters())
            gradients.push_back(own.grad().reshape(-1));
          return at::cat(gradients);
        };
        EXPECT_LT((clipped(true) - clipped(false)).abs().max().item<double>(), 1e-6)
            << to_string(level) << " " << p;
      });
}

// Behaviour 28: shards and gradients on the CPU, the model on devices, and an overflow in fp16
// itself.
TEST(ShardedScaler, DetectsModelOverflowWithShardsOnCpu) {
  install_virtual_devices({.count = 4});
  for (const ShardLevel level : sharded_levels)
    spawn(2, [&](World& world) {
      const at::Device device = device_of_rank(world.rank());
      const DeviceMesh mesh(world, {{"shard", 2}});
      Sharded sharded(make_norm_net(), mesh,
                      {.level = level,
                       .precision = {.parameters = at::kHalf, .output = at::kFloat},
                       .device = device,
                       .shards_on_cpu = true});
      torch::optim::SGD optimizer(sharded.parameters(), 0.1);
      precision::GradientScaler scaler(
          {.initial_scale = std::ldexp(1.0, 30), .backoff_factor = std::ldexp(1.0, -16)});
      std::vector<bool> made;
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        const at::Tensor y = sharded.forward(norm_rows(step).to(device));
        sharded.backward(scaler.scale(F::cross_entropy(y, norm_classes(step).to(device))));
        for (const at::Tensor& shard : sharded.parameters())
          EXPECT_TRUE(shard.is_cpu() && shard.grad().is_cpu());
        made.push_back(unscale(scaler, sharded).finite);
        if (made.back()) optimizer.step();
        scaler.update();
      }
      EXPECT_THAT(made, ::testing::ElementsAre(false, true));
    });
}

}  // namespace
}  // namespace trestle::testing
