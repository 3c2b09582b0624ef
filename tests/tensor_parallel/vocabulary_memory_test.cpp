#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/virtual_environment.h"
#include "trestle/device/device.h"
#include "trestle/tensor_parallel/vocabulary_cross_entropy.h"

namespace trestle::tensor_parallel {
namespace {

// [2, 128, 16384] of each of 4 ranks: 16 MiB in fp32, 8 MiB in bf16.
struct Peaks {
  Bytes scores = 0, forward = 0, backward = 0;
};

Peaks peaks_of(at::ScalarType type) {
  const at::Device device("virtual:0");
  const VocabularyShard shard{TensorRanks::on_paper(1, 4), 65536, 65536};
  const at::Tensor target = torch::full({2, 128}, 20000, torch::kLong).to(device);
  const Bytes before = memory_usage(device).current;
  const at::Tensor own =
      torch::zeros({2, 128, 16384}, at::TensorOptions(device).dtype(type)).requires_grad_(true);
  Peaks peaks{.scores = memory_usage(device).current - before};
  reset_peak_memory(device);
  const at::Tensor loss =
      vocabulary_cross_entropy(shard, {.label_smoothing = 0.1}).value(own, target);
  peaks.forward = memory_usage(device).peak - before;
  reset_peak_memory(device);
  loss.backward();
  peaks.backward = memory_usage(device).peak - before;
  return peaks;
}

// The forward keeps the scores alone, and the backward makes the gradient beside them. All else,
// for some rows at a time and for each token, stays below 3 MiB.
TEST(VocabularyMemory, HoldsTheScoresAndTheirGradientAndNoOtherCopy) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Peaks peaks = peaks_of(type);
    EXPECT_EQ(peaks.scores, 2 * 128 * 16384 * static_cast<Bytes>(at::elementSize(type)));
    EXPECT_LE(peaks.forward, peaks.scores + (Bytes{3} << 20));
    EXPECT_LE(peaks.backward, 2 * peaks.scores + (Bytes{3} << 20));
  }
}

}  // namespace
}  // namespace trestle::tensor_parallel
