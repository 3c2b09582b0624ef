// Splits mini-batches into micro-batches and merges them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/support.h"
#include "trestle/base/error.h"
#include "trestle/pipeline/execute/micro_batch.h"

namespace trestle::pipeline {
namespace {

using support::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int64_t> sizes_of(std::int64_t samples, int pieces) {
  std::vector<std::int64_t> sizes;
  for (const auto& piece : split({torch::zeros({samples, 2})}, pieces))
    sizes.push_back(piece[0].size(0));
  return sizes;
}

TEST(MicroBatch, SplitsRaggedAndShortBatches) {
  EXPECT_THAT(sizes_of(7, 4), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(sizes_of(9, 4), ElementsAre(3, 2, 2, 2));
  EXPECT_THAT(sizes_of(2, 4), ElementsAre(1, 1));
  EXPECT_THAT(sizes_of(8, 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(sizes_of(1, 1), ElementsAre(1));
  EXPECT_EQ(micro_batch_count({torch::zeros({2})}, 4), 2);
}

TEST(MicroBatch, SplitsBySizeAsTorch) {
  for (const std::int64_t samples : {1, 6, 7, 20, 120}) {
    const at::Tensor batch = torch::arange(2 * samples).view({samples, 2});
    const at::Tensor target = torch::arange(samples);
    for (const std::int64_t size : {1, 3, 7, 20, 50, 119, 120, 121}) {
      const auto expected = batch.split(size);
      const auto pieces = split_by_size({batch, target, at::Tensor()}, size);
      ASSERT_EQ(pieces.size(), expected.size()) << samples << " by " << size;
      EXPECT_EQ(micro_batch_count_by_size(samples, size), static_cast<int>(expected.size()));
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        EXPECT_TRUE(pieces[i][0].equal(expected[i])) << samples << " by " << size;
        EXPECT_TRUE(pieces[i][1].equal(target.split(size)[i]));
        EXPECT_FALSE(pieces[i][2].defined());
      }
    }
  }
  EXPECT_THAT(message_of<UsageError>([] { split_by_size({torch::zeros({4})}, 0); }),
              HasSubstr("micro-batches of 0 samples"));
  EXPECT_THAT(message_of<UsageError>([] {
                split_by_size({torch::zeros({0, 2})}, 4);
              }),
              HasSubstr("the mini-batch is empty"));
}

TEST(MicroBatch, MergeUndoesSplit) {
  const nn::Values batch = {torch::randn({7, 3}), torch::arange(7), at::Tensor()};
  const auto pieces = split(batch, 4);
  ASSERT_EQ(pieces.size(), 4u);
  const nn::Values whole = merge(pieces);
  EXPECT_TRUE(torch::equal(whole[0], batch[0]));
  EXPECT_TRUE(torch::equal(whole[1], batch[1]));
  EXPECT_EQ(whole[1].scalar_type(), at::kLong);
  EXPECT_FALSE(whole[2].defined());
}

TEST(MicroBatch, SplitsIntoViews) {
  const at::Tensor batch = torch::zeros({7, 3});
  split({batch}, 4)[3][0].fill_(1);
  EXPECT_EQ(batch[6].sum().item<double>(), 3);
}

TEST(MicroBatch, CopiesTensorsWithoutBatchDimensionToEachMicroBatch) {
  for (const auto& piece : split({torch::zeros({4}), torch::tensor(5.0), at::Tensor()}, 2)) {
    EXPECT_EQ(piece[1].item<double>(), 5);
    EXPECT_FALSE(piece[2].defined());
  }
}

TEST(MicroBatch, RefusesInvalidBatches) {
  EXPECT_THAT(message_of<UsageError>([] {
                split({torch::zeros({4, 2}), torch::zeros({3})}, 2);
              }),
              HasSubstr("tensor 1 of the mini-batch has 3 samples (shape [3]), an earlier one has "
                        "4"));
  EXPECT_THAT(message_of<UsageError>([] { split({torch::tensor(1.0)}, 2); }),
              HasSubstr("no tensor with a batch dimension"));
  EXPECT_THAT(message_of<UsageError>([] {
                split({torch::zeros({0, 2})}, 2);
              }),
              HasSubstr("the mini-batch is empty"));
  EXPECT_THAT(message_of<UsageError>([] {
                merge({{torch::zeros({2})}, {at::Tensor()}});
              }),
              HasSubstr("output 0"));
  EXPECT_THAT(message_of<UsageError>([] {
                merge({{torch::tensor(1.0)}, {torch::tensor(1.0)}});
              }),
              HasSubstr("no batch dimension"));
}

}  // namespace
}  // namespace trestle::pipeline
