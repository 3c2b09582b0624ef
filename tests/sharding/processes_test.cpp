// The levels on processes, which talk by Gloo.
#include <gtest/gtest.h>

#include "tests/sharding/plain_net.h"
#include "tests/support/run_ranks.h"

namespace trestle {
namespace {

TEST(ShardedProcesses, TrainToThePlainModelsWeights) {
  testing::run_process_ranks(2, [](World& world) {
    for (const ShardLevel level : {ShardLevel::None, ShardLevel::OptimizerState,
                                   ShardLevel::Gradients, ShardLevel::Parameters}) {
      const DeviceMesh mesh(world, {{"shard", 2}});
      EXPECT_LT(testing::sharded_training(world, mesh,
                                          {.level = level, .bucket = 2048, .first_bucket = 512}),
                1e-12)
          << to_string(level);
    }
  });
}

TEST(ShardedProcesses, TwoByTwo) {
  testing::run_process_ranks(4, [](World& world) {
    const DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 2}});
    for (const ShardLevel level : {ShardLevel::None, ShardLevel::Gradients, ShardLevel::Parameters})
      EXPECT_LT(testing::sharded_training(world, mesh, {.level = level}), 1e-12)
          << to_string(level);
  });
}

}  // namespace
}  // namespace trestle
