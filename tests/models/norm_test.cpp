#include "trestle/models/transformer/norm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "tests/models/tiny_transformers.h"
#include "trestle/models/transformer/attend.h"

namespace trestle::models {
namespace {

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(); }

// The operators of the header, with autograd's own graph.
at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const at::Tensor exact = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(exact.square().mean(-1, true) + epsilon);
  return (exact * scale).to(x.scalar_type()) * weight;
}

struct Types {
  at::ScalarType x, weight;
};

TEST(RmsNorm, HasTheBitsOfTheOperatorsAndOfTheirGradients) {
  torch::manual_seed(5);
  for (const auto& [type, of_weight] : {Types{at::kFloat, at::kFloat},
                                        {at::kBFloat16, at::kBFloat16},
                                        {at::kBFloat16, at::kFloat},
                                        {at::kDouble, at::kDouble}}) {
    Norm norm(tiny_llama(), of_weight);
    {
      const at::NoGradGuard no_grad;
      norm->weight.copy_(torch::randn({16}));
    }
    const at::Tensor x = leaf(torch::randn({3, 5, 16}).to(type)), same = leaf(x);
    const at::Tensor weight = leaf(norm->weight);
    const at::Tensor y = norm->forward(x), expected = plain_rms_norm(same, weight, norm->epsilon);
    EXPECT_TRUE(at::equal(y, expected));
    const at::Tensor given = torch::randn({3, 5, 16}).to(y.scalar_type());
    y.backward(given);
    expected.backward(given);
    EXPECT_TRUE(at::equal(x.grad(), same.grad())) << (x.grad() - same.grad()).abs().max();
    EXPECT_TRUE(at::equal(norm->weight.grad(), weight.grad()));
    EXPECT_EQ(x.grad().scalar_type(), type);
    EXPECT_EQ(norm->weight.grad().scalar_type(), of_weight);
  }
}

TEST(RmsNorm, HasASecondDerivative) {
  torch::manual_seed(6);
  Norm norm(tiny_llama(), at::kFloat);
  const at::Tensor x = leaf(torch::randn({4, 16})), same = leaf(x);
  const at::Tensor weight = leaf(norm->weight);
  const auto twice = [](const at::Tensor& of, const at::Tensor& y, const at::Tensor& w) {
    const auto gradients = torch::autograd::grad({y.pow(3).sum()}, {of, w}, {}, std::nullopt,
                                                 /*create_graph=*/true);
    (gradients[0].square().sum() + gradients[1].square().sum()).backward();
  };
  twice(x, norm->forward(x), norm->weight);
  twice(same, plain_rms_norm(same, weight, norm->epsilon), weight);
  EXPECT_TRUE(at::allclose(x.grad(), same.grad(), 1e-4, 1e-4));
  EXPECT_TRUE(at::allclose(norm->weight.grad(), weight.grad(), 1e-4, 1e-4));
}

// Scores and weights of a bf16 model are bf16. Those of an fp32 model have the bits of the softmax
// of masked scores.
TEST(WrittenAttention, KeepsTheTypeOfItsModel) {
  torch::manual_seed(7);
  const auto draw = [] { return leaf(torch::randn({2, 4, 12, 8})); };
  const at::Tensor q = draw(), k = draw(), v = draw();
  const AttendOptions written{.core = AttentionCore::Written};
  const at::Tensor never = torch::full({12, 12}, -std::numeric_limits<float>::infinity()).triu(1);
  const at::Tensor expected = at::matmul(
      at::softmax(at::matmul(q * (1 / std::sqrt(8.0)), k.transpose(-2, -1)) + never, -1), v);
  EXPECT_TRUE(at::equal(attend(q, k, v, written), expected));
  const auto narrow = [](const at::Tensor& x) { return x.to(at::kBFloat16); };
  const at::Tensor y = attend(narrow(q), narrow(k), narrow(v), written);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_LT((y.to(at::kFloat) - expected).abs().max().item<double>(), 0.05);
  // A row without an allowed key gives 0.
  at::Tensor mask = torch::zeros({1, 1, 12, 12});
  mask.select(2, 2).fill_(-std::numeric_limits<float>::infinity());
  const at::Tensor masked =
      attend(narrow(q), narrow(k), narrow(v), {.core = AttentionCore::Written, .mask = mask});
  EXPECT_EQ(masked.select(2, 2).abs().max().item<float>(), 0);
  EXPECT_TRUE(masked.isfinite().all().item<bool>());
}

}  // namespace
}  // namespace trestle::models
