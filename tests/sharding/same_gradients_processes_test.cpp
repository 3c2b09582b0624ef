// Process ranks with Gloo have plain libtorch's gradients and the bits of one rank.
#include <gtest/gtest.h>

#include "tests/sharding/reproducible_training.h"
#include "tests/sharding/same_gradients.h"
#include "tests/support/run_ranks.h"

namespace trestle {
namespace {

TEST(ShardedProcesses, HavePlainLibtorchGradients) {
  testing::run_process_ranks(3, [](World& world) {
    const DeviceMesh mesh(world, {{"shard", 3}});
    testing::expect_same_gradients(world, mesh, {.bfloat16 = true});
    testing::expect_same_gradients(world, mesh, {.recompute = true});
  });
}

TEST(ShardedProcesses, HaveBitsOfOneRank) {
  testing::run_process_ranks(4, [](World& world) {
    at::set_num_threads(1);
    testing::BitsTraining training{
        .options = {.reproducible = {.micro_batches = testing::pieces}, .seed = 5}};
    const NamedTensors one = testing::train_bits_on(1, training);
    const DeviceMesh row(world, {{"shard", 4}}), grid(world, {{"replicate", 2}, {"shard", 2}});
    for (const ShardLevel level : {ShardLevel::None, ShardLevel::Parameters}) {
      training.options.level = level;
      EXPECT_TRUE(testing::equal_bits(one, testing::train_bits(row, world, training)))
          << to_string(level);
    }
    EXPECT_TRUE(testing::equal_bits(one, testing::train_bits(grid, world, training)));
  });
}

}  // namespace
}  // namespace trestle
