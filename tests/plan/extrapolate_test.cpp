// Extrapolates a profile that was not measured.
#include "trestle/plan/extrapolate.h"

#include <gtest/gtest.h>

#include "trestle/base/error.h"

namespace trestle::plan {
namespace {

// Costs of 3 + 2 s seconds and 100 + 10 s bytes, with weights of constant size.
LayerProfile of(double size) {
  const auto bytes = static_cast<Bytes>(100 + 10 * size);
  return {.layers = {{.name = "a",
                      .forward = 3 + 2 * size,
                      .backward = 2 * (3 + 2 * size),
                      .parameters = 64,
                      .buffers = 8,
                      .inner = bytes,
                      .transient = 2 * bytes,
                      .transient_forward = bytes + 1,
                      .split = LayerCost::Split{.input_grad = 3 + 2 * size,
                                                .weight_grad = 1 + size,
                                                .kept_for_weights = bytes,
                                                .transient_weight_grad = 3 * bytes}},
                     {.name = "b", .forward = 1, .backward = 1}},
          .values = {{.from = -1, .to = {0}, .saved_by = {0}, .bytes = 4 * bytes},
                     {.from = 0, .to = {1}, .saved_by = {}, .bytes = bytes}},
          .together = {{0, 1}},
          .examples = static_cast<int>(size)};
}

TEST(Extrapolate, IsExactForLinearCosts) {
  const LayerProfile found = extrapolate(of(1), 1, of(4), 4, 100);
  const LayerProfile whole = of(100);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_DOUBLE_EQ(found.layers[i].forward, whole.layers[i].forward);
    EXPECT_DOUBLE_EQ(found.layers[i].backward, whole.layers[i].backward);
    EXPECT_EQ(found.layers[i].parameters, whole.layers[i].parameters);
    EXPECT_EQ(found.layers[i].buffers, whole.layers[i].buffers);
    EXPECT_EQ(found.layers[i].inner, whole.layers[i].inner);
    EXPECT_EQ(found.layers[i].transient, whole.layers[i].transient);
    EXPECT_EQ(found.layers[i].transient_forward, whole.layers[i].transient_forward);
    EXPECT_EQ(found.values[i].bytes, whole.values[i].bytes);
    EXPECT_EQ(found.values[i].saved_by, whole.values[i].saved_by);
  }
  const auto &split = found.layers[0].split, &expected = whole.layers[0].split;
  ASSERT_TRUE(split);
  EXPECT_DOUBLE_EQ(split->input_grad, expected->input_grad);
  EXPECT_DOUBLE_EQ(split->weight_grad, expected->weight_grad);
  EXPECT_EQ(split->kept_for_weights, expected->kept_for_weights);
  EXPECT_EQ(split->transient_weight_grad, expected->transient_weight_grad);
  EXPECT_FALSE(found.layers[1].split);
  EXPECT_EQ(found.together, whole.together);
  EXPECT_EQ(found.examples, 0) << "it was not measured";
}

// Small samples are noisy. A line through two of them must not end below zero or grow too fast.
TEST(Extrapolate, KeepsTimesBetweenTheLargerAndItsProportion) {
  LayerProfile slow = of(1);
  slow.layers[0].forward = 100;
  EXPECT_EQ(extrapolate(slow, 1, of(4), 4, 40).layers[0].forward, of(4).layers[0].forward);
  LayerProfile quick = of(1);
  quick.layers[0].forward = 0;
  EXPECT_EQ(extrapolate(quick, 1, of(4), 4, 40).layers[0].forward, 10 * of(4).layers[0].forward);
}

TEST(Extrapolate, NeverReturnsNegativeBytes) {
  LayerProfile odd = of(1);
  odd.layers[0].inner = 1'000'000;
  EXPECT_EQ(extrapolate(odd, 1, of(4), 4, 40).layers[0].inner, 0);
}

TEST(Extrapolate, RejectsInvalidSizesAndDifferentModels) {
  EXPECT_THROW(extrapolate(of(4), 4, of(1), 1, 40), UsageError);
  EXPECT_THROW(extrapolate(of(0), 0, of(1), 1, 40), UsageError);
  EXPECT_THROW(extrapolate(of(1), 1, of(4), 4, 3), UsageError);
  LayerProfile other = of(4);
  other.layers[1].name = "c";
  EXPECT_THROW(extrapolate(of(1), 1, other, 4, 40), UsageError);
  other = of(4);
  other.values[1].to = {2};
  EXPECT_THROW(extrapolate(of(1), 1, other, 4, 40), UsageError);
  other = of(4);
  other.together.clear();
  EXPECT_THROW(extrapolate(of(1), 1, other, 4, 40), UsageError);
}

}  // namespace
}  // namespace trestle::plan
