#include "trestle/sharding/flat/flat_layout.h"

#include <gtest/gtest.h>

#include "trestle/sharding/flat/buckets.h"

namespace trestle::sharding {
namespace {

using Order = std::vector<std::size_t>;
using Buckets = std::vector<std::vector<std::size_t>>;

// Every element of every tensor lies in exactly one shard, at its place in the flat buffer.
TEST(FlatLayout, ShardsContainEveryElementOnce) {
  for (const int shards : {1, 2, 3, 4, 7, 8}) {
    const FlatLayout layout({5, 0, 100, 1, 17, 4096, 33}, shards);
    EXPECT_EQ(layout.size(), shards * layout.shard_size());
    for (std::size_t tensor = 0; tensor < layout.tensors(); ++tensor) {
      EXPECT_EQ(layout.offset(tensor) % 16, 0);
      std::int64_t next = 0;
      for (int shard = 0; shard < shards; ++shard) {
        const auto slice = layout.slice(tensor, shard);
        if (slice.count == 0) continue;
        EXPECT_EQ(slice.begin, next);
        EXPECT_EQ(shard * layout.shard_size() + slice.offset, layout.offset(tensor) + slice.begin);
        EXPECT_LE(slice.offset + slice.count, layout.shard_size());
        next += slice.count;
      }
      EXPECT_EQ(next, layout.count(tensor));
    }
  }
}

TEST(FlatLayout, LeavesShardsEmptyForMoreRanksThanElements) {
  const FlatLayout layout({3}, 8);
  EXPECT_EQ(layout.slice(0, 0).count, 3);
  for (int shard = 1; shard < 8; ++shard) EXPECT_EQ(layout.slice(0, shard).count, 0);
}

TEST(Buckets, CloseWhenFull) {
  const std::vector<BucketItem> items = {{400}, {400}, {100}, {700}, {200}};
  EXPECT_EQ(assign_buckets(items, Order{4, 3, 2, 1, 0}, 100, 600), (Buckets{{4}, {3}, {2, 1, 0}}));
}

TEST(Buckets, HoldOneKindEach) {
  const std::vector<BucketItem> items = {{10, 0}, {10, 1}, {10, 0}, {10, 1}};
  EXPECT_EQ(assign_buckets(items, Order{0, 1, 2, 3}, 1000, 1000), (Buckets{{0, 2}, {1, 3}}));
}

TEST(Buckets, HoldOneParameterEachAtSizeZero) {
  const std::vector<BucketItem> items = {{10}, {20}, {0}};
  EXPECT_EQ(assign_buckets(items, Order{2, 0, 1}, 0, 0), (Buckets{{2}, {0}, {1}}));
}

}  // namespace
}  // namespace trestle::sharding
