#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/train/run_network.h"
#include "trestle/train/setup.h"
#include "trestle/train/shard_traffic.h"

namespace trestle::train {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;

// Three layers of 1 MB, the last of which has most of the work.
const std::vector<TrafficLayer> layers = {
    {.name = "a", .parameters = {1'000'000}, .forward = 0.25, .backward = 0.25},
    {.name = "b", .parameters = {600'000, 400'000}, .forward = 0.25, .backward = 0.25},
    {.name = "c", .parameters = {1'000'000}, .forward = 0.5, .backward = 0.5}};

recipe::Recipe::Mesh mesh_of(int replicate, int shard, const std::string& level = "parameters") {
  return {.replicate = replicate, .shard = shard, .shard_level = level, .bucket = "900kB"};
}

TEST(ShardTraffic, ReplicasReduceBucketsAsTheirGradientsCome) {
  const auto traffic = stage_traffic(mesh_of(2, 1), layers, {0, 1}, {});
  EXPECT_THAT(traffic.hosts, ElementsAre(0, 1));
  EXPECT_TRUE(traffic.unshard.empty());
  EXPECT_TRUE(traffic.units.empty());
  // Layer c; layer b up to the limit; layer a.
  ASSERT_EQ(traffic.buckets.size(), 3);
  EXPECT_THAT(traffic.buckets[0].ready, DoubleEq(0.5));
  EXPECT_THAT(traffic.buckets[1].ready, DoubleEq(0.75));
  EXPECT_THAT(traffic.buckets[2].ready, DoubleEq(1));
  EXPECT_THAT(traffic.buckets[0].reduce.bytes, DoubleEq(1'000'000));
  EXPECT_THAT(traffic.buckets[0].reduce.latencies, DoubleEq(3));
  EXPECT_THAT(traffic.end.latencies, DoubleEq(3));
}

TEST(ShardTraffic, LevelsOfOptimizerStateAndGradientsGatherBeforeTheStep) {
  for (const char* level : {"optimizer_state", "gradients"}) {
    const auto traffic = stage_traffic(mesh_of(1, 2, level), layers, {0, 1}, {});
    ASSERT_EQ(traffic.unshard.size(), 3) << level;
    EXPECT_THAT(traffic.unshard[0].bytes, DoubleEq(500'000));
    EXPECT_THAT(traffic.buckets[0].reduce.bytes, DoubleEq(500'000));
    EXPECT_THAT(traffic.buckets[0].reduce.latencies, DoubleEq(2));
    EXPECT_EQ(traffic.most_in_flight, 2);
  }
}

TEST(ShardTraffic, LevelParametersGathersEachUnit) {
  auto mesh = mesh_of(1, 2);
  mesh.bucket.clear();
  const auto traffic = stage_traffic(mesh, layers, {0, 1}, {});
  EXPECT_TRUE(traffic.unshard.empty());
  ASSERT_EQ(traffic.units.size(), 3);
  EXPECT_THAT(traffic.units[2].forward, DoubleEq(0.5));
  EXPECT_THAT(traffic.units[2].gather.bytes, DoubleEq(500'000));
  ASSERT_EQ(traffic.buckets.size(), 3);  // from the last unit to the first
  EXPECT_THAT(traffic.buckets[0].ready, DoubleEq(0.5));
  mesh.units = {"stage"};
  EXPECT_EQ(stage_traffic(mesh, layers, {0, 1}, {}).unshard.size(), 1);
  mesh.units = {"layers"};
  mesh.reshard = "no";
  EXPECT_EQ(stage_traffic(mesh, layers, {0, 1}, {}).unshard.size(), 3);
}

// The first layer is a frozen table, the third one has a frozen matrix beside its adapters. All is
// gathered, and what is trained is reduced.
TEST(ShardTraffic, LevelParametersGathersFrozenWeights) {
  const std::vector<TrafficLayer> adapted = {
      {.name = "table", .frozen = 3'000'000, .forward = 0.25, .backward = 0.25},
      {.name = "a", .parameters = {200'000}, .forward = 0.25, .backward = 0.25},
      {.name = "b", .parameters = {200'000}, .frozen = 800'000, .forward = 0.25, .backward = 0.25},
      {.name = "head", .frozen = 600'000, .forward = 0.25, .backward = 0.25}};
  auto mesh = mesh_of(1, 2);
  mesh.bucket.clear();
  const auto traffic = stage_traffic(mesh, adapted, {0, 1}, {});
  ASSERT_EQ(traffic.units.size(), 4);
  EXPECT_THAT(traffic.units[0].gather.bytes, DoubleEq(1'500'000));
  EXPECT_THAT(traffic.units[2].gather.bytes, DoubleEq(500'000));
  EXPECT_THAT(traffic.units[3].gather.bytes, DoubleEq(300'000));
  ASSERT_EQ(traffic.buckets.size(), 2);  // of b, after the head's backward, and of a
  EXPECT_THAT(traffic.buckets[0].reduce.bytes, DoubleEq(100'000));
  EXPECT_THAT(traffic.buckets[0].ready, DoubleEq(0.5));
  mesh.units = {"stage"};
  const auto whole = stage_traffic(mesh, adapted, {0, 1}, {});
  ASSERT_EQ(whole.unshard.size(), 1);
  EXPECT_THAT(whole.unshard[0].bytes, DoubleEq(2'400'000));
  // Other levels move what is trained alone.
  const auto gradients = stage_traffic(mesh_of(1, 2, "gradients"), adapted, {0, 1}, {});
  ASSERT_EQ(gradients.unshard.size(), 1);
  EXPECT_THAT(gradients.unshard[0].bytes, DoubleEq(200'000));
  EXPECT_THAT(gradients.buckets[0].reduce.bytes, DoubleEq(200'000));
}

// HSDP: the rows gather within their hosts, and only sums of shards cross.
TEST(ShardTraffic, RowsInsideHostsReduceOnlyShardsOverTheLink) {
  const auto traffic = stage_traffic(mesh_of(2, 2), layers, {0, 0, 1, 1},
                                     {.seconds = 1e-3, .seconds_per_byte = 1e-9});
  EXPECT_EQ(traffic.units[0].gather.bytes, 0);
  EXPECT_EQ(traffic.units[0].gather.latencies, 0);
  EXPECT_THAT(traffic.units[0].gather.seconds, DoubleEq(1.5e-3));
  // Two ranks of each host exchange the sums of half the gradients each.
  EXPECT_THAT(traffic.buckets[0].reduce.bytes, DoubleEq(1'000'000));
  EXPECT_THAT(traffic.buckets[0].reduce.seconds, DoubleEq(1.5e-3));
}

TEST(ShardTraffic, OneHostHasNoTraffic) {
  const auto traffic = stage_traffic(mesh_of(1, 2), layers, {3, 3}, {});
  EXPECT_THAT(traffic.hosts, ElementsAre(3));
  EXPECT_TRUE(traffic.units.empty());
  EXPECT_TRUE(traffic.buckets.empty());
}

TEST(RunNetwork, RanksOfSeveralHostsMeasureTheirLink) {
  const auto found = spawn(3, [](World& world) {
    const RunRanks ranks(&world);
    return find_network({}, ranks, world.rank() == 2 ? "b" : "a");
  });
  for (const auto& network : found) {
    ASSERT_TRUE(network);
    EXPECT_TRUE(network->measured);
    EXPECT_EQ(network->hosts, 2);
    EXPECT_THAT(network->host_of_rank, ElementsAre(0, 0, 1));
    EXPECT_GT(network->link.bandwidth, 1e6);
    EXPECT_GT(network->link.latency, 0);
    EXPECT_LT(network->link.latency, 0.5);
    EXPECT_EQ(network->link, found[0]->link);
    EXPECT_THAT(network->words(), HasSubstr("2 hosts · "));
    EXPECT_THAT(network->words(), HasSubstr(" each way (measured)"));
  }
}

TEST(RunNetwork, TakesTheLinkOfTheRecipe) {
  const auto found = spawn(2, [](World& world) {
    const RunRanks ranks(&world);
    return find_network({.link = "1Gbit,50us"}, ranks, text(world.rank()));
  });
  EXPECT_FALSE(found[0]->measured);
  EXPECT_EQ(found[0]->words(), "2 hosts · 1 Gbit/s and 50 us each way (given)");
}

TEST(RunNetwork, OneHostNeedsNone) {
  const auto found = spawn(2, [](World& world) {
    const RunRanks ranks(&world);
    return find_network({}, ranks).has_value();
  });
  EXPECT_FALSE(found[0]);
  EXPECT_FALSE(find_network({}, RunRanks()));
}

TEST(RunNetwork, RefusesALinkThatIsNone) {
  try {
    link_of({.link = "100Mb"});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("in 'link' of [mesh] (--link)"));
    EXPECT_THAT(error.what(), HasSubstr("'100Mb' is not a bandwidth"));
  }
  EXPECT_FALSE(link_of({}));
}

}  // namespace
}  // namespace trestle::train
