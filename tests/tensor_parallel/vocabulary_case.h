#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "trestle/comm/threads/spawn.h"
#include "trestle/tensor_parallel/vocabulary_cross_entropy.h"

// Losses over a split vocabulary beside plain libtorch's.
namespace trestle::tensor_parallel {

inline at::Tensor own_scores(const VocabularyShard& shard, const at::Tensor& whole) {
  const nn::IndexRange own = shard.own();
  return whole.narrow(2, std::min(own.begin, shard.vocabulary), own.size);
}

struct LossAndGradient {
  at::Tensor loss;
  at::Tensor gradient;  // of the whole scores
};

// On ranks that are threads, each with its own scores alone. Expects that all get the same bits.
// `times` is the gradient of the loss.
inline LossAndGradient split_loss(int ranks, std::int64_t rows, const at::Tensor& scores,
                                  const at::Tensor& target,
                                  const nn::CrossEntropyOptions& options = {}, double times = 1) {
  const auto results = spawn(ranks, [&](World& world) {
    const VocabularyShard shard{TensorRanks(world.group()), scores.size(2), rows};
    const at::Tensor own = own_scores(shard, scores).detach().clone().requires_grad_(true);
    const at::Tensor loss = vocabulary_cross_entropy(shard, options).value(own, target);
    loss.backward(torch::full({}, times, loss.options()));
    EXPECT_EQ(own.grad().scalar_type(), own.scalar_type());
    return LossAndGradient{loss.detach(), own.grad()};
  });
  std::vector<at::Tensor> gradients;
  for (const LossAndGradient& one : results) {
    EXPECT_TRUE(at::allclose(one.loss, results[0].loss, 0, 0, /*equal_nan=*/true))
        << one.loss << results[0].loss;
    gradients.push_back(one.gradient);
  }
  return {results[0].loss, at::cat(gradients, 2)};
}

// In double, by libtorch alone.
inline LossAndGradient plain_loss(const at::Tensor& scores, const at::Tensor& target,
                                  const nn::CrossEntropyOptions& options = {}, double times = 1) {
  const at::Tensor whole = scores.detach().to(at::kDouble).clone().requires_grad_(true);
  const at::Tensor loss =
      at::cross_entropy_loss(whole.flatten(0, 1), target.flatten(), {}, at::Reduction::Sum,
                             options.ignore_index, options.label_smoothing) /
      target.ne(options.ignore_index).sum().clamp_min(1);
  loss.backward(torch::full({}, times, loss.options()));
  return {loss.detach(), whole.grad()};
}

// `relative` to the loss, and to the largest element of the gradient.
inline void expect_close(const LossAndGradient& split, const LossAndGradient& plain,
                         double relative) {
  const double loss = split.loss.item<double>(), expected = plain.loss.item<double>();
  EXPECT_NEAR(loss, expected, relative * std::max(std::abs(expected), 1.0));
  ASSERT_EQ(split.gradient.sizes(), plain.gradient.sizes());
  if (plain.gradient.numel() == 0) return;
  const double largest = plain.gradient.abs().max().item<double>();
  EXPECT_LE((split.gradient.to(at::kDouble) - plain.gradient).abs().max().item<double>(),
            relative * largest);
}

}  // namespace trestle::tensor_parallel
