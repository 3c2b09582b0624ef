#include "trestle/nn/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "trestle/base/error.h"
#include "trestle/nn/metrics.h"
#include "trestle/nn/token_loss.h"

namespace trestle::nn {
namespace {

double number(const at::Tensor& tensor) { return tensor.item<double>(); }

// The loss of a batch computed from its micro-batches: an additive loss promises the same value.
double from_pieces(const Loss& loss, const at::Tensor& output, const at::Tensor& target,
                   std::int64_t piece) {
  double sum = 0;
  double weight = 0;
  const auto outputs = output.split(piece);
  const auto targets = target.split(piece);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const double w = loss.weight(targets[i]);
    sum += w * number(loss.value(outputs[i], targets[i]));
    weight += w;
  }
  return sum / weight;
}

TEST(Loss, CrossEntropyEqualsTorchsAndAddsUp) {
  torch::manual_seed(0);
  const at::Tensor output = at::randn({7, 4, 3});
  at::Tensor target = at::randint(4, {7, 3}, at::kLong);
  target.index_put_({at::indexing::Slice(0, 3)}, 2);
  for (const CrossEntropyOptions& options :
       {CrossEntropyOptions{}, CrossEntropyOptions{.ignore_index = 2},
        CrossEntropyOptions{.label_smoothing = 0.1},
        CrossEntropyOptions{.ignore_index = 2, .label_smoothing = 0.1}}) {
    const Loss loss = cross_entropy(options);
    const double torchs =
        number(torch::nn::functional::cross_entropy(output, target,
                                                    torch::nn::functional::CrossEntropyFuncOptions()
                                                        .ignore_index(options.ignore_index)
                                                        .label_smoothing(options.label_smoothing)));
    EXPECT_NEAR(number(loss.value(output, target)), torchs, 1e-6);
    EXPECT_NEAR(from_pieces(loss, output, target, 2), torchs,
                1e-6);  // all targets of its first micro-batches may be ignored
  }
}

TEST(Loss, CrossEntropyOfIgnoredTargetsIsZeroWithZeroGradient) {
  const at::Tensor output = at::randn({2, 3}).requires_grad_();
  const at::Tensor target = at::full({2}, -100, at::kLong);
  const at::Tensor value = cross_entropy().value(output, target);
  EXPECT_EQ(number(value), 0);
  EXPECT_EQ(cross_entropy().weight(target), 0);
  value.backward();
  EXPECT_TRUE(output.grad().equal(at::zeros({2, 3})));
}

TEST(Loss, MeanSquaredErrorAddsUp) {
  torch::manual_seed(0);
  const at::Tensor output = at::randn({5, 3});
  const at::Tensor target = at::randn({5, 3});
  EXPECT_NEAR(number(mean_squared_error().value(output, target)),
              number(at::mse_loss(output, target)), 1e-7);
  EXPECT_NEAR(from_pieces(mean_squared_error(), output, target, 2),
              number(at::mse_loss(output, target)), 1e-6);
  EXPECT_THROW(mean_squared_error().value(output, at::randn({5, 1})), UsageError);
}

// Dice written out, one class after the other, as dot products.
double dice_by_hand(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor p = output.softmax(1);
  double sum = 0;
  for (std::int64_t c = 0; c < output.size(1); ++c) {
    const at::Tensor a = p.select(1, c).reshape(-1);
    const at::Tensor b = target.eq(c).to(at::kFloat).reshape(-1);
    sum += (2 * number(a.dot(b)) + 1e-6) / (number(a.sum()) + number(b.sum()) + 1e-6);
  }
  return 1 - sum / static_cast<double>(output.size(1));
}

TEST(Loss, DiceReducesOverTheBatchFirst) {
  torch::manual_seed(0);
  const at::Tensor output = at::randn({4, 3, 5, 6});
  const at::Tensor target = at::randint(3, {4, 5, 6}, at::kLong);
  EXPECT_NEAR(number(dice().value(output, target)), dice_by_hand(output, target), 1e-6);
  EXPECT_EQ(dice().kind, Loss::Kind::WholeBatch);
  EXPECT_EQ(dice_per_micro_batch().kind, Loss::Kind::Additive);
  EXPECT_NE(from_pieces(dice_per_micro_batch(), output, target, 2),
            number(dice().value(output, target)));
  EXPECT_NEAR(number(cross_entropy_and_dice().value(output, target)),
              number(cross_entropy().value(output, target)) + number(dice().value(output, target)),
              1e-6);
}

// The losses of a recipe with ignored mask values, compared with plain libtorch.
TEST(Loss, IgnoredPixelsDoNotCount) {
  torch::manual_seed(0);
  at::Tensor target = at::randint(3, {4, 5, 6}, at::kLong);
  target.masked_fill_(at::rand({4, 5, 6}) < 0.3, ignored_target);
  const at::Tensor scores = at::randn({4, 3, 5, 6});
  const auto gradient = [&](const Loss& loss, double* value) {
    const at::Tensor output = scores.clone().requires_grad_();
    const at::Tensor result = loss.value(output, target);
    *value = number(result);
    result.backward();
    return output.grad();
  };
  double ours = 0;
  const at::Tensor of_entropy = gradient(make_loss("cross_entropy", {.ignores = true}), &ours);
  const at::Tensor plain = scores.clone().requires_grad_();
  const at::Tensor torchs = torch::nn::functional::cross_entropy(
      plain, target, torch::nn::functional::CrossEntropyFuncOptions().ignore_index(ignored_target));
  torchs.backward();
  EXPECT_NEAR(ours, number(torchs), 1e-6);
  EXPECT_LT(number((of_entropy - plain.grad()).abs().max()), 1e-7);

  // Dice: as if the ignored pixels did not exist, the rest in one row.
  const at::Tensor known = target.ne(ignored_target);
  const at::Tensor row = scores.clone().requires_grad_();
  const at::Tensor few =
      row.permute({0, 2, 3, 1}).index({known}).t().unsqueeze(0).unsqueeze(2);  // [1, C, 1, n]
  const at::Tensor expected = dice().value(few, target.index({known}).view({1, 1, -1}));
  expected.backward();
  const at::Tensor of_dice = gradient(dice({.ignores = true}), &ours);
  EXPECT_NEAR(ours, number(expected), 1e-6);
  EXPECT_LT(number((of_dice - row.grad()).abs().max()), 1e-7);

  const at::Tensor of_both = gradient(make_loss("cross_entropy+dice", {.ignores = true}), &ours);
  EXPECT_LT(number((of_both - of_entropy - of_dice).abs().max()), 1e-7);
  EXPECT_EQ(number(of_both.masked_select(known.logical_not().unsqueeze(1)).abs().sum()), 0);
}

// The weight of a micro-batch is the number of its pixels that count.
TEST(Loss, MicroBatchesAreWeightedByPixelsThatCount) {
  const at::Tensor target = at::full({2, 3, 3}, ignored_target, at::kLong);
  target[0][1][1] = 1;
  for (const char* name : {"dice_per_micro_batch", "cross_entropy+dice_per_micro_batch"}) {
    EXPECT_EQ(make_loss(name, {.ignores = true}).weight(target), 1) << name;
    EXPECT_EQ(make_loss(name).weight(target), 2) << name;
  }
  target[0][0][0] = -1;  // an invalid class id
  EXPECT_THROW(dice({.ignores = true}).value(at::randn({2, 2, 3, 3}), target), c10::Error);
}

// If no target is ignored, the numbers equal those without the option, to the bit.
TEST(Loss, IgnoringNothingChangesNothing) {
  torch::manual_seed(0);
  const at::Tensor output = at::randn({4, 3, 5, 6});
  const at::Tensor target = at::randint(3, {4, 5, 6}, at::kLong);
  for (const char* name : {"dice", "cross_entropy+dice", "dice_per_micro_batch"})
    EXPECT_EQ(number(make_loss(name, {.ignores = true}).value(output, target)),
              number(make_loss(name).value(output, target)));
}

TEST(Loss, DiceOfAPerfectOutputIsZero) {
  const at::Tensor target = at::zeros({1, 2, 2}, at::kLong);  // class 1 nowhere
  at::Tensor output = at::zeros({1, 2, 2, 2});
  output.select(1, 0).fill_(200);  // soft-max underflows to exactly 0 for class 1: both sums are 0
  EXPECT_NEAR(number(dice().value(output, target)), 0, 1e-7);
}

TEST(Loss, WrongShapesAreNamed) {
  EXPECT_THROW(cross_entropy().value(at::randn({2, 3}), at::zeros({3}, at::kLong)), UsageError);
  EXPECT_THROW(cross_entropy().value(at::randn({2, 3}), at::zeros({2})), UsageError);
  EXPECT_THROW(dice().value(at::randn({2, 3, 4, 4}), at::zeros({2, 4, 5}, at::kLong)), UsageError);
}

TEST(Metrics, LogProbabilitiesOfHalvesAreSummedInFloat) {
  torch::manual_seed(1);
  const at::Tensor scores = torch::randn({4, 50, 200}).to(at::kBFloat16);
  const at::Tensor target = torch::randint(0, 200, {4, 50});
  const double expected = -number(at::cross_entropy_loss(scores.to(at::kDouble).flatten(0, 1),
                                                         target.flatten(), {}, at::Reduction::Sum));
  EXPECT_NEAR(log_probability_tally(scores, target).sum, expected, 1e-2);
}

TEST(Loss, TokensOutOfRangeAreNamed) {
  for (const std::int64_t wrong : {std::int64_t{5}, std::int64_t{-1}}) {
    at::Tensor target = at::zeros({2, 3}, at::kLong);
    target[1][2] = wrong;
    target[0][0] = ignored_target;
    try {
      token_cross_entropy().value(at::zeros({2, 3, 5}), target);
      ADD_FAILURE() << wrong;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("in row 1, column 2 is out of range: the scores "
                                                   "have 5 tokens"));
    }
  }
}

TEST(Loss, ByName) {
  for (const char* name : {"cross_entropy", "mean_squared_error", "dice", "dice_per_micro_batch",
                           "cross_entropy+dice", "cross_entropy+dice_per_micro_batch"}) {
    EXPECT_EQ(make_loss(name).name, name);
  }
  try {
    make_loss("cross_entrpy");
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("did you mean 'cross_entropy'?"));
  }
}

TEST(Loss, AUsersLossIsWeightedBySamples) {
  const Loss mine =
      additive("mine", [](const at::Tensor& x, const at::Tensor&) { return x.mean(); });
  EXPECT_EQ(mine.weight(at::zeros({3, 2})), 3);
  EXPECT_EQ(mine.weight(at::zeros({})), 1);
}

TEST(Metrics, AccuracyCountsHits) {
  const at::Tensor output = at::tensor({0.1, 0.9, 0.8, 0.2, 0.3, 0.7}).view({3, 2});
  const Tally tally = accuracy_tally(output, at::tensor({1, 1, 1}, at::kLong));
  EXPECT_EQ(tally.sum, 2);
  EXPECT_EQ(tally.count, 3);
  Tally all = tally;
  all += {1, 1};
  EXPECT_DOUBLE_EQ(all.mean(), 0.75);
  EXPECT_EQ(Tally{}.mean(), 0);
}

TEST(Metrics, IgnoredTargetsDoNotCount) {
  const at::Tensor guess = at::tensor({1, 1, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0}, at::kLong);
  const at::Tensor output =
      at::one_hot(guess.view({3, 2, 2}), 2).permute({0, 3, 1, 2}).to(at::kFloat);
  // Image 0: one right, two ignored. Image 1: a false positive. Image 2: all ignored.
  const at::Tensor target =
      at::tensor({1, -100, 0, -100, 0, 0, 0, 0, -100, -100, -100, -100}, at::kLong).view({3, 2, 2});
  const Tally hits = accuracy_tally(output, target);
  EXPECT_EQ(hits.sum, 1 + 1 + 3);
  EXPECT_EQ(hits.count, 2 + 4);
  const Tally dice = dice_tally(output, target);
  EXPECT_EQ(dice.count, 2);
  EXPECT_NEAR(dice.sum, 1 + 0, 1e-5);
}

TEST(Metrics, DiceAveragesOverImages) {
  // Image 0: two of two pixels right. Image 1: one of two true pixels found, no false positive.
  // Image 2: empty in both.
  const at::Tensor guess =
      at::tensor({1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}, at::kLong).view({3, 2, 2});
  const at::Tensor target =
      at::tensor({1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0}, at::kLong).view({3, 2, 2});
  const at::Tensor output = at::one_hot(guess, 2).permute({0, 3, 1, 2}).to(at::kFloat);
  const Tally tally = dice_tally(output, target);
  EXPECT_EQ(tally.count, 3);
  EXPECT_NEAR(tally.sum, 1 + 2.0 / 3 + 1, 1e-6);
  EXPECT_THROW(dice_tally(output.narrow(1, 0, 1), target), UsageError);
  // The same masks as volumes of one slice.
  const Tally of_volumes = dice_tally(output.unsqueeze(2), target.unsqueeze(1));
  EXPECT_EQ(of_volumes.count, tally.count);
  EXPECT_EQ(of_volumes.sum, tally.sum);
}

TEST(Metrics, VoxelDiceAddsUpOverExamples) {
  const at::Tensor guess =
      at::tensor({1, 2, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0}, at::kLong).view({3, 1, 2, 2});
  const at::Tensor target =
      at::tensor({1, 1, 0, 2, 1, 0, -100, 0, 0, 0, 0, 0}, at::kLong).view({3, 1, 2, 2});
  const at::Tensor output = at::one_hot(guess, 3).permute({0, 4, 1, 2, 3}).to(at::kFloat);
  // Two hits; three voxels guessed that count, four true.
  const Tally all = voxel_dice_tally(output, target);
  EXPECT_EQ(all.sum, 2 * 2);
  EXPECT_EQ(all.count, 3 + 4);
  Tally parts;
  for (std::int64_t i = 0; i < 3; ++i)
    parts += voxel_dice_tally(output.narrow(0, i, 1), target.narrow(0, i, 1));
  EXPECT_EQ(parts.sum, all.sum);
  EXPECT_EQ(parts.count, all.count);
}

// Class by class in plain loops over the voxels.
TEST(Loss, DiceOfVolumesEqualsPlainLoops) {
  at::manual_seed(5);
  const at::Tensor output = at::randn({2, 3, 2, 3, 4}, at::kDouble);
  const at::Tensor target = at::randint(0, 3, {2, 2, 3, 4}, at::kLong);
  const at::Tensor probability = at::softmax(output, 1).movedim(1, -1).reshape({-1, 3});
  const at::Tensor truth = target.reshape({-1});
  double dice = 0, entropy = 0;
  for (std::int64_t c = 0; c < 3; ++c) {
    double both = 0, sums = 0;
    for (std::int64_t i = 0; i < truth.numel(); ++i) {
      const double p = probability[i][c].item<double>();
      const double t = truth[i].item<std::int64_t>() == c ? 1 : 0;
      both += p * t;
      sums += p + t;
      if (t == 1) entropy -= std::log(p) / static_cast<double>(truth.numel());
    }
    dice += (2 * both + 1e-6) / (sums + 1e-6) / 3;
  }
  EXPECT_NEAR(cross_entropy_and_dice().value(output, target).item<double>(), entropy + 1 - dice,
              1e-12);
}

}  // namespace
}  // namespace trestle::nn
