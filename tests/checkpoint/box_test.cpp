#include "trestle/checkpoint/files/box.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/random_boxes.h"

namespace trestle::checkpoint {
namespace {

using Kind = CoverFault::Kind;

// The index, in the whole tensor, of the box's element number `number`.
Sizes element(const Box& box, std::int64_t number) {
  Sizes at = box.offset;
  for (std::size_t d = box.sizes.size(); d > 0; --d) {
    at[d - 1] += number % box.sizes[d - 1];
    number /= box.sizes[d - 1];
  }
  return at;
}

bool has(const Box& box, const Sizes& at) {
  for (std::size_t d = 0; d < at.size(); ++d)
    if (at[d] < box.offset[d] || at[d] >= box.end(d)) return false;
  return true;
}

TEST(Boxes, IntersectLikeSetsOfElements) {
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    const Sizes shape = random_shape(random, 3, 6);
    const Box a = random_box(random, shape), b = random_box(random, shape);
    const auto both = intersection(a, b);
    std::int64_t count = 0;
    for (std::int64_t n = 0; n < elements_of(a.sizes); ++n) {
      const bool common = has(b, element(a, n));
      count += common ? 1 : 0;
      ASSERT_EQ(common, both && has(*both, element(a, n))) << to_string(a) << to_string(b);
    }
    ASSERT_EQ(count, both ? elements_of(both->sizes) : 0);
  }
}

TEST(Boxes, OverlapsCoverRequestedBoxOnce) {
  Random random(2);
  for (int i = 0; i < 1000; ++i) {
    const Sizes shape = random_shape(random, 4, 6);
    const std::vector<Box> stored =
        random_cut(random, shape, 1 + static_cast<int>(random.below(9)));
    const Box wanted = random_box(random, shape);
    const auto overlaps = overlaps_of(wanted, stored);
    for (const BoxOverlap& overlap : overlaps)
      ASSERT_EQ(intersection(stored[overlap.stored], overlap.box), overlap.box);
    for (std::int64_t n = 0; n < elements_of(wanted.sizes); ++n) {
      int times = 0;
      for (const BoxOverlap& overlap : overlaps)
        times += has(overlap.box, element(wanted, n)) ? 1 : 0;
      ASSERT_EQ(times, 1);
    }
  }
}

TEST(Boxes, LieWithinAShapeOrNot) {
  EXPECT_TRUE(lies_in({{}, {}}, {}));
  EXPECT_TRUE(lies_in({{2, 0}, {0, 3}}, {2, 3}));
  EXPECT_FALSE(lies_in({{3, 0}, {0, 3}}, {2, 3}));
  EXPECT_FALSE(lies_in({{1, 0}, {2, 3}}, {2, 3}));
  EXPECT_FALSE(lies_in({{0, -1}, {1, 1}}, {2, 3}));
  EXPECT_FALSE(lies_in({{0}, {1}}, {2, 3}));
  constexpr std::int64_t large = std::int64_t{1} << 62;
  EXPECT_FALSE(lies_in({{large}, {large}}, {2}));
  EXPECT_FALSE(lies_in({{INT64_MAX}, {INT64_MAX}}, {large}));
}

TEST(BoxCover, AnyWayOfCuttingIsComplete) {
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    const Sizes shape = random_shape(random, 4, 7);
    const auto boxes = random_cut(random, shape, 1 + static_cast<int>(random.below(20)));
    ASSERT_FALSE(find_cover_fault(shape, boxes));
  }
}

// Five boxes that no straight cut separates.
TEST(BoxCover, APinwheelIsComplete) {
  const std::vector<Box> wheel = {
      {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
  EXPECT_FALSE(find_cover_fault({3, 3}, wheel));
  const auto fault = find_cover_fault({3, 3}, {wheel.begin(), wheel.end() - 1});
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->kind, Kind::Hole);
  EXPECT_EQ(fault->box, wheel.back());
}

TEST(BoxCover, AHoleIsReported) {
  Random random(4);
  for (int i = 0; i < 1000; ++i) {
    const Sizes shape = random_shape(random, 3, 7);
    auto boxes = random_cut(random, shape, 1 + static_cast<int>(random.below(9)));
    const Box missing = boxes.back();
    boxes.pop_back();
    const auto fault = find_cover_fault(shape, boxes);
    ASSERT_TRUE(fault);
    ASSERT_EQ(fault->kind, Kind::Hole);
    ASSERT_EQ(intersection(fault->box, missing), fault->box);
  }
}

TEST(BoxCover, AnOverlapIsReported) {
  Random random(5);
  for (int i = 0; i < 1000; ++i) {
    const Sizes shape = random_shape(random, 3, 7);
    auto boxes = random_cut(random, shape, 1 + static_cast<int>(random.below(9)));
    boxes.push_back(random_box(random, shape));
    shuffle(boxes, random);
    const auto fault = find_cover_fault(shape, boxes);
    ASSERT_TRUE(fault);
    ASSERT_EQ(fault->kind, Kind::Overlap);
    ASSERT_LT(fault->first, fault->second);
    ASSERT_EQ(intersection(boxes[fault->first], boxes[fault->second]), fault->box);
  }
}

TEST(BoxCover, ScalarsAndTensorsWithoutElements) {
  EXPECT_FALSE(find_cover_fault({}, {{{}, {}}}));
  EXPECT_EQ(find_cover_fault({}, {})->kind, Kind::Hole);
  EXPECT_EQ(find_cover_fault({}, {{{}, {}}, {{}, {}}})->kind, Kind::Overlap);
  EXPECT_FALSE(find_cover_fault({0, 3}, {{{0, 0}, {0, 3}}}));
  EXPECT_EQ(find_cover_fault({0, 3}, {})->kind, Kind::Hole);
  EXPECT_FALSE(find_cover_fault({2}, {{{0}, {2}}, {{2}, {0}}})) << "an empty box has nothing";
}

// The boxes of thousands of ranks, also in reverse order, must be checked quickly.
TEST(BoxCover, ManyBoxesAreCheckedQuickly) {
  Random random(6);
  std::vector<Box> rows, blocks;
  for (std::int64_t i = 0; i < 20'000; ++i) rows.push_back({{i * 3, 0}, {3, 8}});
  for (std::int64_t i = 0; i < 150; ++i)
    for (std::int64_t j = 0; j < 150; ++j) blocks.push_back({{i * 2, j * 5}, {2, 5}});
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(find_cover_fault({60'000, 8}, rows));
    EXPECT_FALSE(find_cover_fault({300, 750}, blocks));
    shuffle(rows, random);
    shuffle(blocks, random);
  }
  // Crossing bars in three dimensions: separating them would take the square of their number.
  std::vector<Box> bars;
  for (std::int64_t i = 0; i < 3000; ++i) {
    bars.push_back({{2 * i, 0, 2 * i}, {1, 9000, 1}});
    bars.push_back({{0, 2 * i + 1, 2 * i}, {9000, 1, 1}});
  }
  EXPECT_TRUE(find_cover_fault({9000, 9000, 9000}, bars));
}

}  // namespace
}  // namespace trestle::checkpoint
