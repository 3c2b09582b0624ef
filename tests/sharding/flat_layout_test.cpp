#include "trestle/sharding/flat_layout.h"

#include <gtest/gtest.h>

#include "trestle/sharding/buckets.h"

namespace trestle::sharding {
namespace {

using Order = std::vector<std::size_t>;
using Buckets = std::vector<std::vector<std::size_t>>;

// Every element of every tensor lies in exactly one shard, at its place in the flat buffer.
TEST(FlatLayout, ShardsContainEveryElementOnce) {
  for (const int pieces : {1, 2, 3, 4, 7, 8}) {
    const FlatLayout layout({5, 0, 100, 1, 17, 4096, 33}, pieces);
    EXPECT_EQ(layout.size(), pieces * layout.piece_size());
    for (std::size_t tensor = 0; tensor < layout.tensors(); ++tensor) {
      EXPECT_EQ(layout.offset(tensor) % 16, 0);
      std::int64_t next = 0;
      for (int piece = 0; piece < pieces; ++piece) {
        const auto part = layout.part(tensor, piece);
        if (part.count == 0) continue;
        EXPECT_EQ(part.begin, next);
        EXPECT_EQ(piece * layout.piece_size() + part.offset, layout.offset(tensor) + part.begin);
        EXPECT_LE(part.offset + part.count, layout.piece_size());
        next += part.count;
      }
      EXPECT_EQ(next, layout.count(tensor));
    }
  }
}

TEST(FlatLayout, LeavesShardsEmptyForMoreRanksThanElements) {
  const FlatLayout layout({3}, 8);
  EXPECT_EQ(layout.part(0, 0).count, 3);
  for (int piece = 1; piece < 8; ++piece) EXPECT_EQ(layout.part(0, piece).count, 0);
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
