// The memory of gathered units while each layer of a stage runs, from hand-made layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trestle/train/sharding_plan.h"

namespace trestle::train {
namespace {

std::vector<std::pair<Bytes, Bytes>> memory(const recipe::Recipe::Mesh& mesh) {
  std::vector<std::pair<Bytes, Bytes>> pairs;
  for (const plan::UnitMemory& one :
       memory_of_units(mesh, {{.name = "act0"},
                              {.name = "a", .trained = 100},
                              {.name = "act1"},
                              {.name = "b", .trained = 10, .frozen = 20},
                              {.name = "c", .trained = 400}}))
    pairs.emplace_back(one.forward, one.backward);
  return pairs;
}

TEST(MemoryOfUnits, GathersTheLayersUnitAndTheNextOne) {
  // Forward: the layer's unit and the next one. Backward: the unit and the one before it, the
  // gradients of the unit, and the larger of the buffers of its reduction and of the next unit's.
  EXPECT_THAT(
      memory({.shard = 2, .shard_level = "parameters"}),
      testing::ElementsAre(std::pair(100, 0 + 100), std::pair(100 + 30, 100 + 100 + 100),
                           std::pair(30, 100 + 10), std::pair(30 + 400, 30 + 100 + 10 + 400),
                           std::pair(400, 400 + 30 + 400 + 400)));
}

TEST(MemoryOfUnits, FollowsTheUnitsOfTheRecipe) {
  // a with act1 and b, then c.
  EXPECT_THAT(memory({.shard = 2, .shard_level = "parameters", .units = {"110B"}}),
              testing::ElementsAre(std::pair(130, 110), std::pair(530, 130 + 110 + 400),
                                   std::pair(530, 130 + 110 + 400), std::pair(530, 130 + 110 + 400),
                                   std::pair(400, 400 + 130 + 400 + 400)));
}

TEST(MemoryOfUnits, IsEmptyWhereNoUnitIsGatheredAlone) {
  using testing::IsEmpty;
  EXPECT_THAT(memory({}), IsEmpty());
  EXPECT_THAT(memory({.shard = 2, .shard_level = "gradients"}), IsEmpty());
  EXPECT_THAT(memory({.shard = 2, .shard_level = "parameters", .units = {"stage"}}), IsEmpty());
  EXPECT_THAT(memory({.shard = 2, .shard_level = "parameters", .reshard = "no"}), IsEmpty());
}

}  // namespace
}  // namespace trestle::train
