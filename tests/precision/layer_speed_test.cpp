// Precisions that are slow on a CPU.
#include "trestle/precision/layer_speed.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

namespace trestle::precision {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

LayerSpeed seconds(double fp32, double bf16, double fp16) {
  return {.weight = "conv1.weight [64, 3, 7, 7]", .fp32 = fp32, .bf16 = bf16, .fp16 = fp16};
}

TEST(LayerSpeed, FindsPrecisionThatTakesTwiceAsLongAsFp32) {
  EXPECT_FALSE(find_slow_precision(Precision::Float16, seconds(1, 1, 1.9)));
  EXPECT_FALSE(find_slow_precision(Precision::Float32, seconds(1, 1, 90)));
  EXPECT_FALSE(find_slow_precision(Precision::BFloat16, seconds(1, 1, 90)));
  EXPECT_FALSE(find_slow_precision(Precision::Float16, seconds(1e-5, 1e-5, 4e-4)))
      << "a small layer";
  const auto fp16 = find_slow_precision(Precision::Float16, seconds(1, 0.5, 90));
  ASSERT_TRUE(fp16);
  EXPECT_EQ(fp16->times, 90);
  EXPECT_EQ(fp16->better, Precision::BFloat16);
  const auto both = find_slow_precision(Precision::Float16, seconds(1, 2, 3));
  ASSERT_TRUE(both);
  EXPECT_EQ(both->better, Precision::Float32) << "bf16 is slow too";
  EXPECT_EQ(find_slow_precision(Precision::BFloat16, seconds(1, 3, 1))->better, Precision::Float32);
}

TEST(LayerSpeed, DescriptionHasDurationsAndWayOut) {
  const std::string words =
      describe(*find_slow_precision(Precision::Float16, seconds(0.0018, 0.0011, 0.0281)));
  EXPECT_THAT(words, HasSubstr("fp16 takes 16 times as long as fp32 on this CPU: 28 ms, and 2 ms"));
  EXPECT_THAT(words, HasSubstr("conv1.weight [64, 3, 7, 7]; bf16 takes 1 ms"));
  EXPECT_THAT(describe(*find_slow_precision(Precision::BFloat16, seconds(1, 2.54, 1))),
              testing::AllOf(HasSubstr("bf16 takes 2.5 times"), Not(HasSubstr("; bf16 takes"))));
}

TEST(LayerSpeed, MeasuresLargestWeightOfAnyLayerQuickly) {
  const std::vector<std::vector<std::int64_t>> shapes = {
      {50, 10},         {1, 1},    {100'000, 4096}, {64, 3, 7, 7},
      {512, 512, 3, 3}, {4, 2, 3}, {8, 4, 3, 3, 3}, {2, 2, 1, 40}};
  for (const auto& shape : shapes) {
    const auto begin = std::chrono::steady_clock::now();
    const LayerSpeed speed = measure_layer_speed("a.weight", shape);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_GT(speed.fp32, 0);
    EXPECT_GT(speed.bf16, 0);
    EXPECT_GT(speed.fp16, 0);
    EXPECT_LT(took.count(), 10) << "on a busy machine";
    EXPECT_THAT(speed.weight, HasSubstr("a.weight ["));
  }
}

TEST(LayerSpeed, ChoosesLargestWeight) {
  nn::Layers net;
  int made = 0;
  net.add("in", torch::nn::Linear(4, 8));
  net.add("wide", [&made] {
    ++made;
    return torch::nn::Linear(8, 32);
  });
  net.add("act", [](at::Tensor x) { return x.relu(); });
  const auto speed = measure_layer_speed(net);
  ASSERT_TRUE(speed);
  EXPECT_EQ(speed->weight, "wide.weight [32, 8]");
  EXPECT_EQ(
      measure_layer_speed(NamedTensors{{"bias", at::ones({3})}, {"w", at::ones({2, 3})}})->weight,
      "w [2, 3]");
  EXPECT_FALSE(measure_layer_speed(NamedTensors{{"bias", at::ones({3})}}));
}

}  // namespace
}  // namespace trestle::precision
