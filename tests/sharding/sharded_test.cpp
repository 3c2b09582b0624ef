// Equal weights at every level on every number of ranks.
#include <gtest/gtest.h>

#include "tests/sharding/plain_net.h"
#include "tests/support/virtual_environment.h"
#include "trestle/comm/threads/spawn.h"

namespace trestle {
namespace {

struct LevelCase {
  ShardLevel level;
  int replicate, shard;
};

std::string name_of(const ::testing::TestParamInfo<LevelCase>& info) {
  std::string level(to_string(info.param.level));
  return level + "_" + std::to_string(info.param.replicate) + "x" +
         std::to_string(info.param.shard);
}

class EveryLevel : public ::testing::TestWithParam<LevelCase> {};

TEST_P(EveryLevel, TrainsToPlainModelsWeights) {
  const LevelCase given = GetParam();
  spawn(given.replicate * given.shard, [&](World& world) {
    const DeviceMesh mesh(world, {{"replicate", given.replicate}, {"shard", given.shard}});
    EXPECT_LT(testing::sharded_training(
                  world, mesh, {.level = given.level, .buckets = {.size = 2048, .first = 512}}),
              1e-12)
        << "rank " << world.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Levels, EveryLevel,
    ::testing::Values(
        LevelCase{ShardLevel::None, 1, 1}, LevelCase{ShardLevel::None, 3, 1},
        LevelCase{ShardLevel::None, 2, 2}, LevelCase{ShardLevel::OptimizerState, 1, 2},
        LevelCase{ShardLevel::OptimizerState, 1, 4}, LevelCase{ShardLevel::Gradients, 1, 1},
        LevelCase{ShardLevel::Gradients, 1, 3}, LevelCase{ShardLevel::Gradients, 2, 2},
        LevelCase{ShardLevel::Parameters, 1, 1}, LevelCase{ShardLevel::Parameters, 1, 2},
        LevelCase{ShardLevel::Parameters, 1, 4}, LevelCase{ShardLevel::Parameters, 2, 2}),
    name_of);

}  // namespace
}  // namespace trestle
