#include "trestle/checkpoint/files/range_boxes.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/random_boxes.h"

namespace trestle::checkpoint {
namespace {

Sizes random_order(Random& random, std::size_t dimensions) {
  Sizes order(dimensions);
  for (std::size_t d = 0; d < dimensions; ++d) order[d] = static_cast<std::int64_t>(d);
  shuffle(order, random);
  return order;
}

Sizes strides_of(const Sizes& shape, const Sizes& order) {
  Sizes strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i > 0; --i) {
    const auto d = static_cast<std::size_t>(order[i - 1]);
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

// The memory positions of a box's elements, visited in the order `order`.
Sizes places_of(const Box& box, const Sizes& strides, const Sizes& order) {
  Sizes places;
  for (std::int64_t n = 0; n < elements_of(box.sizes); ++n) {
    std::int64_t rest = n, place = 0;
    for (std::size_t i = order.size(); i > 0; --i) {
      const auto d = static_cast<std::size_t>(order[i - 1]);
      place += (box.offset[d] + rest % box.sizes[d]) * strides[d];
      rest /= box.sizes[d];
    }
    places.push_back(place);
  }
  return places;
}

TEST(RangeBoxes, CoverTheRangeInMemoryOrder) {
  Random random(11);
  for (int i = 0; i < 20'000; ++i) {
    const Sizes shape = random_shape(random, 5, 5);
    const Sizes order = random_order(random, shape.size());
    const Sizes strides = strides_of(shape, order);
    const std::int64_t all = elements_of(shape), begin = below(random, all + 1);
    const std::int64_t count = below(random, all - begin + 1);
    const auto boxes = boxes_of_range(shape, order, begin, count);
    const std::size_t most = count == 0 ? 0 : shape.empty() ? 1 : 2 * shape.size() - 1;
    ASSERT_LE(boxes.size(), most);
    Sizes places;
    for (const Box& box : boxes) {
      ASSERT_TRUE(lies_in(box, shape));
      const Sizes own = places_of(box, strides, order);
      places.insert(places.end(), own.begin(), own.end());
    }
    ASSERT_EQ(places.size(), static_cast<std::size_t>(count));
    for (std::int64_t n = 0; n < count; ++n)
      ASSERT_EQ(places[static_cast<std::size_t>(n)], begin + n);
  }
}

TEST(RangeBoxes, EqualHandComputedBoxes) {
  const Sizes rows = {0, 1, 2};
  EXPECT_EQ(boxes_of_range({2, 3, 4}, rows, 0, 24), (std::vector<Box>{{{0, 0, 0}, {2, 3, 4}}}));
  EXPECT_EQ(boxes_of_range({2, 3, 4}, rows, 5, 2), (std::vector<Box>{{{0, 1, 1}, {1, 1, 2}}}));
  EXPECT_EQ(boxes_of_range({2, 3, 4}, rows, 2, 20), (std::vector<Box>{{{0, 0, 2}, {1, 1, 2}},
                                                                      {{0, 1, 0}, {1, 2, 4}},
                                                                      {{1, 0, 0}, {1, 2, 4}},
                                                                      {{1, 2, 0}, {1, 1, 2}}}));
  EXPECT_EQ(boxes_of_range({}, {}, 0, 1), (std::vector<Box>{{{}, {}}}));
  EXPECT_TRUE(boxes_of_range({}, {}, 0, 0).empty());
  EXPECT_TRUE(boxes_of_range({3, 0}, {0, 1}, 0, 0).empty());
}

TEST(RangeBoxes, MemoryOrderFollowsTheStrides) {
  Random random(12);
  for (int i = 0; i < 2000; ++i) {
    const Sizes shape = random_shape(random, 5, 4);
    const Sizes strides = strides_of(shape, random_order(random, shape.size()));
    const auto found = memory_order(shape, strides);
    ASSERT_TRUE(found);
    const Sizes same = strides_of(shape, *found);
    for (std::size_t d = 0; d < shape.size(); ++d)
      ASSERT_TRUE(shape[d] == 1 || same[d] == strides[d]);
  }
  EXPECT_EQ(memory_order({8, 3, 5, 5}, {75, 1, 15, 3}), (Sizes{0, 2, 3, 1}));
  EXPECT_FALSE(memory_order({4, 3}, {6, 2})) << "every second column";
  EXPECT_FALSE(memory_order({4, 3}, {0, 1})) << "expanded";
  EXPECT_FALSE(memory_order({4, 3}, {2, 1})) << "rows that overlap";
  EXPECT_TRUE(memory_order({1, 3}, {77, 1})) << "the stride of a single row has no meaning";
  EXPECT_TRUE(memory_order({0, 3}, {9, 9}));
}

// For any number of ranks and any memory order, the check of their boxes passes quickly.
TEST(RangeBoxes, BoxesOfManyRanksCoverTheTensor) {
  struct Case {
    Sizes shape, order;
  };
  for (const auto& [shape, order] : {Case{{64, 33, 3, 3}, {0, 1, 2, 3}},
                                     {{64, 33, 3, 3}, {0, 2, 3, 1}},
                                     {{3, 701, 3, 3}, {0, 2, 3, 1}},
                                     {{1, 50, 20, 20}, {0, 2, 3, 1}},
                                     {{301, 17}, {1, 0}},
                                     {{2, 3, 5, 7, 11}, {4, 2, 0, 3, 1}},
                                     {{10'007}, {0}}})
    for (const std::int64_t ranks : {2, 3, 8, 61, 512, 1024}) {
      const std::int64_t all = elements_of(shape), piece = (all + ranks - 1) / ranks;
      std::vector<Box> boxes;
      for (std::int64_t begin = 0; begin < all; begin += piece)
        for (Box& box : boxes_of_range(shape, order, begin, std::min(piece, all - begin)))
          boxes.push_back(std::move(box));
      ASSERT_FALSE(find_cover_fault(shape, boxes)) << ranks << " ranks, " << boxes.size();
      const std::size_t middle = boxes.size() / 2;
      const Box missing = boxes[middle];
      boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(middle));
      const auto fault = find_cover_fault(shape, boxes);
      ASSERT_TRUE(fault);
      ASSERT_EQ(fault->kind, CoverFault::Kind::Hole);
      ASSERT_EQ(intersection(fault->box, missing), fault->box);
    }
}

}  // namespace
}  // namespace trestle::checkpoint
