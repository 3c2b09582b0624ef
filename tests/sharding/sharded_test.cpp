// Equal weights at every level on every number of ranks.
#include <gtest/gtest.h>

#include "tests/sharding/plain_net.h"
#include "trestle/comm/threads/spawn.h"

namespace trestle {
namespace {

struct Case {
  ShardLevel level;
  int replicate, shard;
};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  std::string level(to_string(info.param.level));
  return level + "_" + std::to_string(info.param.replicate) + "x" +
         std::to_string(info.param.shard);
}

class EveryLevel : public ::testing::TestWithParam<Case> {};

TEST_P(EveryLevel, TrainsToPlainModelsWeights) {
  const Case given = GetParam();
  spawn(given.replicate * given.shard, [&](World& world) {
    const DeviceMesh mesh(world, {{"replicate", given.replicate}, {"shard", given.shard}});
    EXPECT_LT(testing::sharded_training(
                  world, mesh, {.level = given.level, .bucket = 2048, .first_bucket = 512}),
              1e-12)
        << "rank " << world.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Levels, EveryLevel,
    ::testing::Values(Case{ShardLevel::None, 1, 1}, Case{ShardLevel::None, 3, 1},
                      Case{ShardLevel::None, 2, 2}, Case{ShardLevel::OptimizerState, 1, 2},
                      Case{ShardLevel::OptimizerState, 1, 4}, Case{ShardLevel::Gradients, 1, 1},
                      Case{ShardLevel::Gradients, 1, 3}, Case{ShardLevel::Gradients, 2, 2},
                      Case{ShardLevel::Parameters, 1, 1}, Case{ShardLevel::Parameters, 1, 2},
                      Case{ShardLevel::Parameters, 1, 4}, Case{ShardLevel::Parameters, 2, 2}),
    name_of);

}  // namespace
}  // namespace trestle
