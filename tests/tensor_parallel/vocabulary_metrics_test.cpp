#include "trestle/tensor_parallel/vocabulary_metrics.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "tests/support/message_of.h"
#include "tests/tensor_parallel/vocabulary_case.h"
#include "trestle/base/error.h"
#include "trestle/nn/token_loss.h"

namespace trestle::tensor_parallel {
namespace {

using support::message_of;
using ::testing::HasSubstr;

// The right tokens of the whole scores, and the number of tokens that count.
nn::Tally plain_accuracy(const at::Tensor& scores, const at::Tensor& target) {
  return {static_cast<double>(scores.argmax(-1).eq(target).sum().item<std::int64_t>()),
          static_cast<double>(target.ne(-100).sum().item<std::int64_t>())};
}

void expect_accuracy(int ranks, std::int64_t rows, const at::Tensor& scores,
                     const at::Tensor& target) {
  const nn::Tally plain = plain_accuracy(scores, target);
  spawn(ranks, [&](World& world) {
    const VocabularyShard shard{TensorRanks(world.group()), scores.size(2), rows};
    const nn::Tally split = vocabulary_accuracy_tally(shard, own_scores(shard, scores), target);
    EXPECT_EQ(split.sum, plain.sum);
    EXPECT_EQ(split.count, plain.count);
  });
}

// Few different scores, so that most rows have several largest ones.
TEST(VocabularyMetrics, TheSmallestOfEqualTokensIsTheGuess) {
  torch::manual_seed(1);
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor scores = torch::randint(3, {8, 40, 13}).to(type);
    const at::Tensor target = scores.argmax(-1);  // all right
    target.select(1, 0).fill_(nn::ignored_target);
    target.select(1, 1).fill_(12);
    for (const int ranks : {1, 2, 3, 4, 8})
      for (const std::int64_t rows : {13, 16, 32}) expect_accuracy(ranks, rows, scores, target);
  }
  // The same score on both ranks: the first rank's id.
  expect_accuracy(2, 4, torch::ones({1, 2, 4}), torch::tensor({{0, 2}}, torch::kLong));
}

TEST(VocabularyMetrics, AccuracyTreatsNanAndInfinityAsArgmaxDoes) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor scores = torch::tensor({{{1.0F, infinity, nan, 2.0F},
                                            {nan, 1.0F, infinity, nan},
                                            {-infinity, -infinity, -infinity, -infinity},
                                            {-infinity, -infinity, -infinity, -1e30F},
                                            {-0.0F, 0.0F, 0.0F, -1.0F}}});
  const at::Tensor right = torch::tensor({{2, 0, 0, 3, 0}}, torch::kLong);
  ASSERT_EQ(plain_accuracy(scores, right).sum, 5);
  for (const int ranks : {2, 3, 4, 8}) {
    expect_accuracy(ranks, 4, scores, right);
    expect_accuracy(ranks, 8, scores, right);
  }
}

TEST(VocabularyMetrics, LogProbabilitiesEqualThoseOfTheWholeScores) {
  torch::manual_seed(2);
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor scores = (torch::randn({3, 7, 29}, torch::kDouble) * 4).to(type);
    const at::Tensor target = torch::randint(29, {3, 7}, torch::kLong);
    target.select(1, 2).fill_(nn::ignored_target);
    const double plain = -at::cross_entropy_loss(scores.to(at::kDouble).flatten(0, 1),
                                                 target.flatten(), {}, at::Reduction::Sum)
                              .item<double>();
    const nn::Tally whole = nn::log_probability_tally(scores, target);
    for (const int ranks : {1, 2, 3, 4, 8})
      for (const std::int64_t rows : {29, 32, 64}) {
        spawn(ranks, [&](World& world) {
          const VocabularyShard shard{TensorRanks(world.group()), 29, rows};
          const nn::Tally split =
              vocabulary_log_probability_tally(shard, own_scores(shard, scores), target);
          const double relative = type == at::kDouble ? 1e-14 : 1e-6;
          EXPECT_NEAR(split.sum, plain, relative * std::abs(plain));
          EXPECT_NEAR(split.sum, whole.sum, relative * std::abs(plain));
          EXPECT_EQ(split.count, 18);
        });
      }
  }
}

TEST(VocabularyMetrics, WholeScoresJoinUnevenAndEmptyShards) {
  for (const at::ScalarType type : {at::kDouble, at::kBFloat16})
    for (const std::int64_t vocabulary : {1, 3, 13, 16})
      for (const int ranks : {1, 2, 3, 4, 8})
        for (const std::int64_t rows : {vocabulary, vocabulary + 3, std::int64_t{32}}) {
          const at::Tensor scores =
              torch::arange(6 * vocabulary, torch::kDouble).view({2, 3, vocabulary}).to(type);
          spawn(ranks, [&](World& world) {
            const VocabularyShard shard{TensorRanks(world.group()), vocabulary, rows};
            const at::Tensor own = own_scores(shard, scores).clone().requires_grad_(true);
            const at::Tensor whole = whole_scores(shard, own);
            EXPECT_FALSE(whole.requires_grad());
            EXPECT_EQ(whole.scalar_type(), type);
            EXPECT_TRUE(at::equal(whole, scores))
                << vocabulary << " of " << rows << " rows over " << ranks << " ranks:\n"
                << whole;
          });
        }
}

TEST(VocabularyMetrics, NoTokensGiveEmptyTallies) {
  spawn(2, [](World& world) {
    const VocabularyShard shard{TensorRanks(world.group()), 8, 8};
    const at::Tensor own = torch::zeros({2, 0, 4}), target = torch::zeros({2, 0}, torch::kLong);
    EXPECT_EQ(vocabulary_accuracy_tally(shard, own, target).count, 0);
    EXPECT_EQ(vocabulary_log_probability_tally(shard, own, target).sum, 0);
    EXPECT_EQ(whole_scores(shard, own).sizes(), at::IntArrayRef({2, 0, 8}));
  });
}

TEST(VocabularyMetrics, RanksOnPaperSendNothing) {
  for (const int rank : {0, 1, 2, 3}) {
    const VocabularyShard shard{TensorRanks::on_paper(rank, 4), 10, 16};
    const at::Tensor own = torch::zeros({2, 3, shard.own().size});
    const at::Tensor target = torch::full({2, 3}, 5, torch::kLong);
    EXPECT_EQ(whole_scores(shard, own).sizes(), at::IntArrayRef({2, 3, 10}));
    EXPECT_EQ(vocabulary_accuracy_tally(shard, own, target).count, 6);
    EXPECT_TRUE(std::isfinite(vocabulary_log_probability_tally(shard, own, target).sum));
  }
}

TEST(VocabularyMetrics, RefuseWrongShapesAndIdsOnAllRanksAlike) {
  spawn(2, [](World& world) {
    const VocabularyShard shard{TensorRanks(world.group()), 8, 8};
    const at::Tensor own = torch::zeros({2, 3, 4}), target = torch::full({2, 3}, 8, torch::kLong);
    EXPECT_THAT(
        message_of<UsageError>([&] { vocabulary_log_probability_tally(shard, own, target); }),
        HasSubstr("log_probability: target 8 in row 0, column 0 is out of range: the "
                  "scores have 8 tokens"));
    EXPECT_THAT(message_of<UsageError>([&] {
                  vocabulary_accuracy_tally(shard, own, torch::zeros({3, 2}, torch::kLong));
                }),
                HasSubstr("token_accuracy takes scores [N, T, V] and int64 token ids [N, T]; got "
                          "[2, 3, 8]"));
    EXPECT_THAT(message_of<UsageError>([&] {
                  whole_scores(shard, torch::zeros({2, 3, 8}));
                }),
                HasSubstr("tensor ranks has the scores [N, T, 4]"));
  });
}

}  // namespace
}  // namespace trestle::tensor_parallel
