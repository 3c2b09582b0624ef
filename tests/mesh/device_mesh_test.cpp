#include "trestle/mesh/device_mesh.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/comm/rank_error.h"
#include "trestle/comm/threads/spawn.h"

namespace trestle {
namespace {

using support::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Ranks = std::vector<int>;

// The sum of a group's ranks, computed by its own all-reduce.
double sum_of_ranks(const World& world, comm::Group group) {
  at::Tensor sum = torch::ones({1}) * world.rank();
  group.all_reduce(sum).wait();
  return sum.item<double>();
}

TEST(DeviceMesh, HasGroupsOfTwoByFourMesh) {
  const auto sums = spawn(8, [](World& world) {
    const DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 4}});
    EXPECT_EQ(mesh.size(), 8);
    EXPECT_EQ(mesh.size("shard"), 4);
    EXPECT_EQ(mesh.coordinate("replicate"), world.rank() / 4);
    EXPECT_EQ(mesh.coordinate("shard"), world.rank() % 4);
    EXPECT_EQ(mesh.group("shard").rank(), mesh.coordinate("shard"));
    EXPECT_EQ(mesh.group("replicate").ranks(), (Ranks{world.rank() % 4, world.rank() % 4 + 4}));
    return std::pair(sum_of_ranks(world, mesh.group("shard")),
                     sum_of_ranks(world, mesh.group("replicate")));
  });
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(sums[static_cast<std::size_t>(rank)].first, rank < 4 ? 6 : 22);
    EXPECT_EQ(sums[static_cast<std::size_t>(rank)].second, 2 * (rank % 4) + 4);
  }
}

TEST(DeviceMesh, SupportsOneDimensionAndDimensionsOfSizeOne) {
  spawn(4, [](World& world) {
    const DeviceMesh line(world, {{"shard", 4}});
    EXPECT_EQ(sum_of_ranks(world, line.group("shard")), 6);
    const DeviceMesh flat(world, {{"pipeline", 1}, {"replicate", 4}, {"shard", 1}});
    EXPECT_EQ(flat.group("pipeline").ranks(), (Ranks{world.rank()}));
    EXPECT_EQ(sum_of_ranks(world, flat.group("shard")), world.rank());
    EXPECT_EQ(sum_of_ranks(world, flat.group("replicate")), 6);
  });
}

TEST(DeviceMesh, SupportsSingleRank) {
  spawn(1, [](World& world) {
    const DeviceMesh mesh(world, {{"replicate", 1}, {"shard", 1}});
    EXPECT_EQ(sum_of_ranks(world, mesh.group("shard")), 0);
  });
}

TEST(DeviceMesh, SupportsFlattenedDimensionsAndSlices) {
  spawn(8, [](World& world) {
    const DeviceMesh mesh = DeviceMesh(world, {{"pipeline", 2}, {"replicate", 2}, {"shard", 2}})
                                .flatten({"replicate", "shard"}, "data");
    const int stage = world.rank() / 4;
    EXPECT_EQ(mesh.size("data"), 4);
    EXPECT_EQ(mesh.coordinate("data"), world.rank() % 4);
    EXPECT_EQ(sum_of_ranks(world, mesh.group("data")), stage == 0 ? 6 : 22);
    const DeviceMesh slice = mesh.slice({"replicate", "shard"});
    EXPECT_EQ(slice.size(), 4);
    EXPECT_EQ(slice.layout().ranks()[0], 4 * stage);
    EXPECT_EQ(sum_of_ranks(world, slice.group("data")), stage == 0 ? 6 : 22);
    EXPECT_EQ(sum_of_ranks(world, slice.group("shard")),
              2 * world.rank() + (world.rank() % 2 == 0 ? 1 : -1));
    EXPECT_THROW(slice.group("pipeline"), UsageError);
    EXPECT_THROW(mesh.slice({"shard"}).group("data"), UsageError);
    // Each stage has its own slice, and all ranks flatten it.
    const DeviceMesh again = slice.flatten({"replicate", "shard"}, "both");
    EXPECT_EQ(sum_of_ranks(world, again.group("both")), stage == 0 ? 6 : 22);
  });
}

TEST(DeviceMesh, GroupsEqualLayoutsGroups) {
  for (const auto& sizes : std::vector<Ranks>{{8}, {2, 4}, {4, 2}, {2, 2, 2}, {1, 8}, {2, 1, 4}})
    spawn(8, [&](World& world) {
      std::vector<mesh::Dimension> dimensions;
      for (const int size : sizes)
        dimensions.push_back({"d" + std::to_string(dimensions.size()), size});
      const DeviceMesh mesh(world, dimensions);
      for (const auto& dimension : dimensions) {
        const Ranks ranks = mesh.layout().group_of(world.rank(), {dimension.name});
        EXPECT_EQ(mesh.group(dimension.name).ranks(), ranks);
        double sum = 0;
        for (const int rank : ranks) sum += rank;
        EXPECT_EQ(sum_of_ranks(world, mesh.group(dimension.name)), sum);
      }
    });
}

TEST(DeviceMesh, ExplainsInvalidMeshes) {
  spawn(4, [](World& world) {
    EXPECT_THAT(message_of<UsageError>([&] {
                  DeviceMesh(world, {{"replicate", 2}, {"shard", 4}});
                }),
                AllOf(HasSubstr("2 x 4 = 8 ranks, but there are 4"), HasSubstr("shard=2")));
    const DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 2}});
    EXPECT_THAT(message_of<UsageError>([&] { mesh.group("shart"); }),
                HasSubstr("did you mean 'shard'?"));
    EXPECT_THAT(message_of<UsageError>([&] {
                  mesh.flatten({"shard", "replicate"}, "data");
                }),
                HasSubstr("order"));
  });
}

TEST(DeviceMesh, NamesDifferencesBetweenMeshes) {
  spawn(4, [](World& world) {
    const bool odd = world.rank() == 2;
    const std::string said = message_of<UsageError>([&] {
      DeviceMesh(world, {{odd ? "row" : "replicate", 2}, {odd ? "column" : "shard", 2}});
    });
    EXPECT_THAT(said,
                AllOf(HasSubstr("rank 0 replicate=2,shard=2"), HasSubstr("rank 2 row=2,column=2")));
    // The ranks can continue.
    EXPECT_EQ(DeviceMesh(world, {{"shard", 4}}).size(), 4);
  });
}

}  // namespace
}  // namespace trestle
