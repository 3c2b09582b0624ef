#include "trestle/tensor_parallel/vocabulary_cross_entropy.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/message_of.h"
#include "tests/tensor_parallel/vocabulary_case.h"
#include "trestle/base/error.h"
#include "trestle/nn/token_loss.h"
#include "trestle/tensor_parallel/operators.h"

namespace trestle::tensor_parallel {
namespace {

using support::message_of;
using ::testing::HasSubstr;

constexpr double infinity = std::numeric_limits<double>::infinity();

at::Tensor random_scores(at::IntArrayRef sizes, at::ScalarType type = at::kDouble) {
  return (torch::randn(sizes, torch::kDouble) * 3).to(type);
}

// The first token of each row does not count.
at::Tensor random_target(at::IntArrayRef sizes, std::int64_t vocabulary,
                         std::int64_t ignored = nn::ignored_target) {
  const at::Tensor target = torch::randint(vocabulary, sizes, torch::kLong);
  if (sizes[1] > 1) target.select(1, 0).fill_(ignored);
  return target;
}

std::int64_t rounded_up(std::int64_t size, std::int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

TEST(VocabularyCrossEntropy, EqualsPlainTorchInDoubleOnAnyNumberOfRanks) {
  torch::manual_seed(1);
  const at::Tensor scores = random_scores({2, 5, 37}), target = random_target({2, 5}, 37);
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const std::int64_t multiple : {1, 16})
      for (const double smoothing : {0.0, 0.1, 1.0}) {
        SCOPED_TRACE(::testing::Message() << ranks << " ranks, rows in multiples of " << multiple
                                          << ", smoothing " << smoothing);
        const nn::CrossEntropyOptions options{.label_smoothing = smoothing};
        expect_close(split_loss(ranks, rounded_up(37, multiple), scores, target, options),
                     plain_loss(scores, target, options), 1e-14);
      }
}

TEST(VocabularyCrossEntropy, EqualsPlainTorchOnRandomShapes) {
  torch::manual_seed(2);
  for (int i = 0; i < 24; ++i) {
    const auto draw = [](std::int64_t below) {
      return 1 + torch::randint(below, {}, torch::kLong).item<std::int64_t>();
    };
    const std::int64_t n = draw(4), t = draw(6), vocabulary = draw(40), multiple = draw(12);
    const int ranks = static_cast<int>(draw(8));
    const nn::CrossEntropyOptions options{.ignore_index = i % 3 == 0 ? 0 : nn::ignored_target,
                                          .label_smoothing = i % 2 * 0.2};
    SCOPED_TRACE(::testing::Message() << n << " x " << t << " x " << vocabulary << ", rows in "
                                      << multiple << "s, " << ranks << " ranks");
    const at::Tensor scores = random_scores({n, t, vocabulary});
    const at::Tensor target = random_target({n, t}, vocabulary, options.ignore_index);
    expect_close(split_loss(ranks, rounded_up(vocabulary, multiple), scores, target, options, -2.5),
                 plain_loss(scores, target, options, -2.5), 1e-13);
  }
}

// 50257 is 29 x 1733: no useful number of ranks divides it.
TEST(VocabularyCrossEntropy, SplitsGpt2sVocabularyOverFourRanks) {
  torch::manual_seed(3);
  const at::Tensor scores = random_scores({2, 3, 50257}, at::kFloat);
  const at::Tensor target = random_target({2, 3}, 50257);
  target[0][1] = 50256;
  target[0][2] = 0;
  for (const std::int64_t rows : {50257, 50304, 51200})
    for (const double smoothing : {0.0, 0.1}) {
      const nn::CrossEntropyOptions options{.label_smoothing = smoothing};
      expect_close(split_loss(4, rows, scores, target, options),
                   plain_loss(scores, target, options), 5e-7);
    }
}

// 3 tokens on 8 ranks, and 5 tokens in a table of 16 rows on 4 ranks.
TEST(VocabularyCrossEntropy, RanksMayHoldNoToken) {
  torch::manual_seed(4);
  const nn::CrossEntropyOptions options{.label_smoothing = 0.1};
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const double relative = type == at::kDouble ? 1e-14 : 5e-7;
    const at::Tensor three = random_scores({2, 4, 3}, type), ids = random_target({2, 4}, 3);
    expect_close(split_loss(8, 8, three, ids, options), plain_loss(three, ids, options), relative);
    const at::Tensor five = random_scores({2, 4, 5}, type), id = random_target({2, 4}, 5);
    expect_close(split_loss(4, 16, five, id, options), plain_loss(five, id, options), relative);
    const at::Tensor one = random_scores({1, 1, 1}, type), zero = torch::zeros({1, 1}, at::kLong);
    expect_close(split_loss(2, 1, one, zero, options), plain_loss(one, zero, options), relative);
  }
}

TEST(VocabularyCrossEntropy, AnIgnoredTokenMayBeOfTheVocabulary) {
  torch::manual_seed(5);
  const at::Tensor scores = random_scores({2, 6, 10});
  const at::Tensor target = random_target({2, 6}, 10, 7);
  for (const double smoothing : {0.0, 0.3}) {
    const nn::CrossEntropyOptions options{.ignore_index = 7, .label_smoothing = smoothing};
    expect_close(split_loss(3, 10, scores, target, options), plain_loss(scores, target, options),
                 1e-14);
  }
}

TEST(VocabularyCrossEntropy, IsZeroIfNoTokenCounts) {
  const at::Tensor scores = random_scores({2, 3, 8}, at::kFloat);
  const at::Tensor target = torch::full({2, 3}, nn::ignored_target, torch::kLong);
  const LossAndGradient none = split_loss(2, 8, scores, target, {.label_smoothing = 0.1});
  EXPECT_EQ(none.loss.item<double>(), 0);
  EXPECT_TRUE(at::equal(none.gradient, torch::zeros({2, 3, 8})));
  for (const auto& sizes : {std::vector<std::int64_t>{0, 3}, std::vector<std::int64_t>{2, 0}}) {
    const at::Tensor no_token = torch::zeros(sizes, torch::kLong);
    const LossAndGradient empty = split_loss(2, 8, torch::zeros({sizes[0], sizes[1], 8}), no_token);
    EXPECT_EQ(empty.loss.item<double>(), 0);
    EXPECT_EQ(empty.gradient.numel(), 0);
  }
}

// The mean over a batch is the mean of its micro-batches by the number of tokens that count.
TEST(VocabularyCrossEntropy, MicroBatchesAddUpByTheirWeight) {
  torch::manual_seed(6);
  const at::Tensor scores = random_scores({6, 5, 11}), target = random_target({6, 5}, 11);
  target.narrow(0, 0, 2).fill_(nn::ignored_target);
  target[3].narrow(0, 0, 4).fill_(nn::ignored_target);
  const LossAndGradient plain = plain_loss(scores, target);
  spawn(3, [&](World& world) {
    const VocabularyShard shard{TensorRanks(world.group()), 11, 12};
    const nn::Loss loss = vocabulary_cross_entropy(shard);
    EXPECT_EQ(loss.kind, nn::Loss::Kind::Additive);
    EXPECT_EQ(loss.name, "token_cross_entropy");
    const at::Tensor own = own_scores(shard, scores).clone().requires_grad_(true);
    const double whole = loss.weight(target);
    EXPECT_EQ(whole, nn::token_cross_entropy().weight(target));
    double sum = 0;
    for (std::int64_t first = 0; first < 6; first += 2) {
      const at::Tensor ids = target.narrow(0, first, 2);
      const at::Tensor value = loss.value(own.narrow(0, first, 2), ids);
      const double share = loss.weight(ids) / whole;
      sum += value.item<double>() * share;
      (value * share).backward();
    }
    EXPECT_NEAR(sum, plain.loss.item<double>(), 1e-13);
    EXPECT_TRUE(at::allclose(own.grad(), own_scores(shard, plain.gradient), 1e-12, 1e-15));
  });
}

// Each rank computes in fp32. The gradient is rounded once.
TEST(VocabularyCrossEntropy, HalfScoresKeepTheAccuracyOfFp32) {
  torch::manual_seed(7);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor scores = random_scores({2, 5, 301}, type);
    const at::Tensor target = random_target({2, 5}, 301);
    const nn::CrossEntropyOptions options{.label_smoothing = 0.1};
    const LossAndGradient plain = plain_loss(scores, target, options);
    const double rounding = type == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
    const LossAndGradient split = split_loss(4, 304, scores, target, options);
    EXPECT_EQ(split.loss.scalar_type(), type);
    EXPECT_NEAR(split.loss.item<double>(), plain.loss.item<double>(),
                rounding * plain.loss.item<double>());
    const at::Tensor error = (split.gradient.to(at::kDouble) - plain.gradient).abs();
    // fp16's smallest numbers have fewer digits.
    const double least = type == at::kHalf ? 0x1p-25 : 1e-9;
    EXPECT_TRUE(error.le(plain.gradient.abs() * rounding * 1.01 + least).all().item<bool>());
  }
}

struct AutocastToBFloat16 {
  AutocastToBFloat16() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~AutocastToBFloat16() { at::autocast::set_autocast_enabled(at::kCPU, false); }
};

TEST(VocabularyCrossEntropy, TheLossIsFp32UnderAutocast) {
  torch::manual_seed(8);
  const at::Tensor hidden = torch::randn({2, 5, 16}), weight = torch::randn({24, 16});
  const at::Tensor target = random_target({2, 5}, 24);
  spawn(3, [&](World& world) {
    const VocabularyShard shard{TensorRanks(world.group()), 24, 24};
    const AutocastToBFloat16 autocast;
    const at::Tensor own = at::linear(hidden, weight.narrow(0, 8 * world.rank(), 8));
    EXPECT_EQ(own.scalar_type(), at::kBFloat16);
    const at::Tensor leaf = own.detach().requires_grad_(true);
    const at::Tensor loss = vocabulary_cross_entropy(shard).value(leaf, target);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    loss.backward();
    EXPECT_EQ(leaf.grad().scalar_type(), at::kBFloat16);
    const at::Tensor whole = at::linear(hidden, weight).detach();
    const LossAndGradient plain = plain_loss(whole, target);
    EXPECT_NEAR(loss.item<double>(), plain.loss.item<double>(), 1e-5);
    EXPECT_TRUE(
        at::allclose(leaf.grad().to(at::kDouble), own_scores(shard, plain.gradient), 0x1p-8, 1e-8));
    const at::Tensor ours = nn::token_cross_entropy().value(whole, target);
    EXPECT_EQ(loss.scalar_type(), ours.scalar_type());
    EXPECT_NEAR(loss.item<double>(), ours.item<double>(), 1e-5);
  });
}

// fp32 has three decimals at 10,000: the logarithm of the sum must not be added to such a score.
TEST(VocabularyCrossEntropy, LargeScoresLoseNoDigits) {
  torch::manual_seed(9);
  const at::Tensor near = (random_scores({3, 4, 9}) * 8).round() / 8;
  const at::Tensor target = random_target({3, 4}, 9);
  for (const double offset : {1e4, -1e4, 1e6})
    for (const double smoothing : {0.0, 0.1}) {
      const nn::CrossEntropyOptions options{.label_smoothing = smoothing};
      const at::Tensor scores = (near + offset).to(at::kFloat);
      ASSERT_TRUE(at::equal(scores.to(at::kDouble), near + offset));
      expect_close(split_loss(4, 12, scores, target, options), plain_loss(near, target, options),
                   5e-7);
    }
  const at::Tensor far = torch::tensor({{{1e4F, -1e4F, 0.0F}, {-1e4F, -1e4F, -1e4F}}});
  const at::Tensor ids = torch::tensor({{1, 2}}, torch::kLong);
  expect_close(split_loss(3, 3, far, ids), plain_loss(far, ids), 1e-7);
}

// Tokens that cannot come, on the rank of the target and on other ranks, and a whole shard of them.
TEST(VocabularyCrossEntropy, ScoresOfMinusInfinityCountAsAbsent) {
  torch::manual_seed(10);
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    at::Tensor scores = random_scores({2, 3, 12}, type);
    at::Tensor target = torch::tensor({{0, 5, 11}, {3, 4, 7}}, torch::kLong);
    scores.select(2, 1).fill_(-infinity);
    scores[0].narrow(1, 6, 3).fill_(-infinity);  // rank 2 of 4
    expect_close(split_loss(4, 12, scores, target), plain_loss(scores, target),
                 type == at::kDouble ? 1e-14 : 5e-7);
    scores[1][0][3] = -infinity;  // a target
    const LossAndGradient split = split_loss(4, 12, scores, target);
    const LossAndGradient plain = plain_loss(scores, target);
    EXPECT_EQ(plain.loss.item<double>(), infinity);
    EXPECT_EQ(split.loss.item<double>(), infinity);
    EXPECT_TRUE(at::allclose(split.gradient.to(at::kDouble), plain.gradient, 1e-6, 1e-7));
  }
}

// NaN and infinity on one rank, and rows of -infinity on all: NaN on every rank, in the loss and
// in the gradient of the row, as in libtorch.
TEST(VocabularyCrossEntropy, NanOfOneRankReachesAllRanks) {
  torch::manual_seed(11);
  const at::Tensor target = torch::tensor({{0, 5, 11}, {3, 4, 7}}, torch::kLong);
  for (const double bad : {std::nan(""), infinity, -infinity})
    for (const std::int64_t column : {0, 4, 11}) {
      SCOPED_TRACE(::testing::Message() << bad << " in column " << column);
      at::Tensor scores = random_scores({2, 3, 12}, at::kFloat);
      if (bad == -infinity) {
        scores[1][2].fill_(bad);
      } else {
        scores[1][2][column] = bad;
      }
      const LossAndGradient split = split_loss(4, 12, scores, target);
      const LossAndGradient plain = plain_loss(scores, target);
      ASSERT_TRUE(std::isnan(plain.loss.item<double>()));
      EXPECT_TRUE(std::isnan(split.loss.item<double>()));
      EXPECT_TRUE(at::allclose(split.gradient.to(at::kDouble), plain.gradient, 1e-6, 1e-7,
                               /*equal_nan=*/true));
      // A row that does not count leaves the loss alone.
      at::Tensor ignoring = target.clone();
      ignoring[1][2] = nn::ignored_target;
      const double without = split_loss(4, 12, scores, ignoring).loss.item<double>();
      EXPECT_NEAR(without, plain_loss(scores, ignoring).loss.item<double>(), 1e-6);
    }
}

// Megatron-LM's test of its loss: each of 4 ranks has the scores 0 to 7, four times over. It
// compares rounded numbers. These are exact: log(16 sum of e^k) minus the score of the target.
TEST(VocabularyCrossEntropy, KnownAnswersOfMegatronsTest) {
  const at::Tensor scores = torch::arange(8, torch::kDouble).repeat({16}).expand({1, 16, 128});
  const at::Tensor target = torch::arange(0, 32, 2, torch::kLong).unsqueeze(0);
  const double log_sum = std::log(16) + 7 + std::log((1 - std::exp(-8.0)) / (1 - std::exp(-1.0)));
  for (std::int64_t token = 0; token < 16; ++token) {
    const LossAndGradient one =
        split_loss(4, 128, scores.narrow(1, token, 1), target.narrow(1, token, 1));
    EXPECT_NEAR(one.loss.item<double>(), log_sum - 2.0 * static_cast<double>(token % 4), 1e-14);
  }
  EXPECT_NEAR(log_sum, 10.2309, 5e-5);
}

// Megatron's second test: seeded scores of 4 x 1000 tokens against the whole loss, also smoothed.
TEST(VocabularyCrossEntropy, SeededScoresAgreeToTheLastDigits) {
  torch::manual_seed(1234);
  const at::Tensor scores = random_scores({1, 13, 68}) * 10;
  const at::Tensor target = torch::randint(68, {1, 13}, torch::kLong);
  for (const int ranks : {2, 4, 8})
    for (const double smoothing : {0.0, 0.2}) {
      const nn::CrossEntropyOptions options{.label_smoothing = smoothing};
      expect_close(split_loss(ranks, 72, scores, target, options),
                   plain_loss(scores, target, options), 1e-14);
    }
}

TEST(VocabularyCrossEntropy, WrongTargetsAreRefusedOnAllRanksAlike) {
  const at::Tensor scores = torch::zeros({2, 3, 10});
  const auto refused_everywhere = [&](const at::Tensor& target) {
    const std::string whole =
        message_of<UsageError>([&] { nn::token_cross_entropy().value(scores, target); });
    EXPECT_THAT(whole, HasSubstr("token_cross_entropy"));
    const auto all = spawn(4, [&](World& world) {
      const VocabularyShard shard{TensorRanks(world.group()), 10, 12};
      return message_of<UsageError>(
          [&] { vocabulary_cross_entropy(shard).value(own_scores(shard, scores), target); });
    });
    for (const std::string& message : all) EXPECT_EQ(message, whole);
  };
  at::Tensor target = torch::zeros({2, 3}, torch::kLong);
  target[1][2] = 10;  // a padded row
  refused_everywhere(target);
  target[1][2] = -1;
  refused_everywhere(target);
  refused_everywhere(torch::zeros({3, 2}, torch::kLong));
  refused_everywhere(torch::zeros({2, 3}));
  refused_everywhere(at::Tensor());
}

TEST(VocabularyCrossEntropy, RefusesOtherWidthsAndSizes) {
  spawn(2, [](World& world) {
    const VocabularyShard shard{TensorRanks(world.group()), 9, 12};
    const at::Tensor target = torch::zeros({2, 3}, torch::kLong);
    EXPECT_THAT(
        message_of<UsageError>([&] {
          vocabulary_cross_entropy(shard).value(torch::zeros({2, 3, 9}), target);
        }),
        HasSubstr(world.rank() == 0 ? "rank 0 of 2 tensor ranks has the scores [N, T, 6] of the "
                                      "tokens from 0 on, of 9; got [2, 3, 9]"
                                    : "has the scores [N, T, 3] of the tokens from 6 on"));
    EXPECT_THAT(message_of<UsageError>([&] {
                  vocabulary_cross_entropy({shard.ranks, 9, 8});
                }),
                HasSubstr("a vocabulary of 9 tokens in a table of 8 rows"));
    EXPECT_THAT(message_of<UsageError>([&] {
                  vocabulary_cross_entropy({shard.ranks, 0, 8});
                }),
                HasSubstr("a vocabulary of 0 tokens"));
    for (const double smoothing : {-0.1, 1.1, std::nan("")})
      EXPECT_THAT(message_of<UsageError>(
                      [&] { vocabulary_cross_entropy(shard, {.label_smoothing = smoothing}); }),
                  HasSubstr("label smoothing"));
  });
}

// Rank 1 makes the two collectives by hand. Ranks that are threads compare kinds, shapes and
// dtypes, and rank 1 makes none in the backward.
TEST(VocabularyCrossEntropy, SendsTwoSmallMessagesAndNoneInTheBackward) {
  for (const double smoothing : {0.0, 0.1}) {
    spawn(2, [&](World& world) {
      if (world.rank() == 1) {
        world.group().all_reduce(torch::zeros({6}), comm::Reduce::Max).wait();
        world.group().all_reduce(torch::zeros({smoothing > 0 ? 3 : 2, 6})).wait();
      } else {
        const VocabularyShard shard{TensorRanks(world.group()), 8, 8};
        const at::Tensor own = torch::zeros({2, 3, 4}).requires_grad_(true);
        vocabulary_cross_entropy(shard, {.label_smoothing = smoothing})
            .value(own, torch::zeros({2, 3}, torch::kLong))
            .backward();
      }
      world.group().barrier();
    });
  }
}

TEST(VocabularyCrossEntropy, OneRankAloneComputesTheWholeLoss) {
  torch::manual_seed(12);
  const at::Tensor scores = random_scores({2, 5, 37}, at::kFloat);
  const at::Tensor target = random_target({2, 5}, 37);
  const nn::CrossEntropyOptions options{.label_smoothing = 0.1};
  const at::Tensor whole = scores.clone().requires_grad_(true);
  const at::Tensor expected = nn::token_cross_entropy(options).value(whole, target);
  expected.backward();
  const at::Tensor own = scores.clone().requires_grad_(true);
  const at::Tensor loss = vocabulary_cross_entropy({{}, 37, 40}, options).value(own, target);
  loss.backward();
  EXPECT_TRUE(at::equal(loss, expected));
  EXPECT_TRUE(at::equal(own.grad(), whole.grad()));
}

TEST(VocabularyCrossEntropy, RanksOnPaperSendNothing) {
  for (const int rank : {0, 1, 2, 3}) {
    const VocabularyShard shard{TensorRanks::on_paper(rank, 4), 10, 16};
    const at::Tensor own = torch::zeros({2, 3, shard.own().size}).requires_grad_(true);
    const at::Tensor loss = vocabulary_cross_entropy(shard, {.label_smoothing = 0.1})
                                .value(own, torch::full({2, 3}, 5, torch::kLong));
    EXPECT_TRUE(std::isfinite(loss.item<double>()));
    loss.backward();
    EXPECT_EQ(own.grad().sizes(), own.sizes());
  }
}

// The hook of a gradient that is needed again, such as a penalty on its norm.
TEST(VocabularyCrossEntropy, RefusesASecondDerivative) {
  spawn(2, [](World& world) {
    const VocabularyShard shard{TensorRanks(world.group()), 8, 8};
    const at::Tensor own = torch::zeros({2, 3, 4}).requires_grad_(true);
    const at::Tensor loss =
        vocabulary_cross_entropy(shard).value(own, torch::zeros({2, 3}, torch::kLong));
    const at::Tensor gradient =
        torch::autograd::grad({loss}, {own}, {}, {}, /*create_graph=*/true)[0];
    EXPECT_TRUE(gradient.requires_grad());
    EXPECT_THAT(message_of<UsageError>([&] { gradient.square().sum().backward(); }),
                HasSubstr("cannot be differentiated twice"));
  });
}

TEST(VocabularyCrossEntropy, NeedsNoGradient) {
  spawn(2, [](World& world) {
    const VocabularyShard shard{TensorRanks(world.group()), 8, 8};
    const at::Tensor target = torch::zeros({2, 3}, torch::kLong);
    EXPECT_FALSE(
        vocabulary_cross_entropy(shard).value(torch::zeros({2, 3, 4}), target).requires_grad());
    const at::NoGradGuard no_grad;
    const at::Tensor own = torch::zeros({2, 3, 4}).requires_grad_(true);
    EXPECT_NEAR(vocabulary_cross_entropy(shard).value(own, target).item<double>(), std::log(8),
                1e-6);
  });
}

// The scores of a Branched tensor give a loss that each rank may use whole, and not as a term.
TEST(VocabularyCrossEntropy, TheLossIsReplicated) {
  spawn(2, [](World& world) {
    const VocabularyShard shard{TensorRanks(world.group()), 8, 8};
    const at::Tensor hidden = torch::ones({2, 3, 5}).requires_grad_(true);
    const at::Tensor own =
        branch(shard.ranks, Replicated(hidden)).tensor.matmul(torch::ones({5, 4}));
    const at::Tensor loss =
        vocabulary_cross_entropy(shard).value(own, torch::zeros({2, 3}, torch::kLong));
    EXPECT_NO_THROW(Replicated{loss * 2});
    EXPECT_THAT(message_of<UsageError>([&] { Partial{loss * 2}; }), HasSubstr("cannot be Partial"));
  });
}

TEST(VocabularyCrossEntropy, ErrorsNameTheLossThatWaited) {
  const std::string message = message_of<Error>([] {
    spawn(2, [](World& world) {
      if (world.rank() == 1) throw UsageError("rank 1 stops");
      const VocabularyShard shard{TensorRanks(world.group()).of("loss"), 8, 8};
      EXPECT_THAT(message_of<Error>([&] {
                    vocabulary_cross_entropy(shard).value(torch::zeros({2, 3, 4}),
                                                          torch::zeros({2, 3}, torch::kLong));
                  }),
                  HasSubstr("while the tensor ranks compared 'loss'"));
      throw UsageError("rank 0 stops");
    });
  });
  EXPECT_THAT(message, HasSubstr("stops"));
}

}  // namespace
}  // namespace trestle::tensor_parallel
