#include "trestle/nn/keyed_dropout.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trestle/base/counter_random.h"
#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/nn/run_key.h"

namespace trestle::nn {
namespace {

// The mask by the rule of the header: seed, step, layer, call, example and element.
at::Tensor mask_of(const RunKey& key, std::int64_t layer, std::int64_t call, double p,
                   at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  const CounterRandom random(keyed_seed(keyed_seed(key.seed, key.step, layer, -1), call, 0, 0));
  at::Tensor mask = at::empty(sizes, type);
  const std::int64_t row = mask.numel() / sizes[0];
  for (std::int64_t n = 0; n < sizes[0]; ++n)
    for (std::int64_t e = 0; e < row; ++e) {
      const auto index =
          (static_cast<std::uint64_t>(key.example + n) << 40) + static_cast<std::uint64_t>(e);
      mask.view({sizes[0], row})[n][e] = random.uniform(index) < p ? 0.0 : 1 / (1 - p);
    }
  return mask;
}

TEST(KeyedDropout, KeysEachNumberByExampleAndElement) {
  const RunKey key{.seed = 3, .step = 5, .micro_batch = 2, .example = 7};
  const LayerRun run(key, 4);
  const at::Tensor ones = at::ones({3, 5, 2});
  for (std::int64_t call = 0; call < 3; ++call)
    EXPECT_TRUE(
        at::equal(keyed_dropout(ones, 0.4, true), mask_of(key, 4, call, 0.4, ones.sizes())));
}

TEST(KeyedDropout, DrawsMicroBatchesAndSlicesAlone) {
  const at::Tensor ones = at::ones({6, 8, 3});
  const auto draw = [&](std::int64_t micro_batch, std::int64_t example, const at::Tensor& x,
                        const std::optional<DropoutSlice>& slice = {}) {
    const LayerRun run({.seed = 1, .step = 2, .micro_batch = micro_batch, .example = example}, 0);
    return keyed_dropout(x, 0.5, true, slice);
  };
  const at::Tensor whole = draw(0, 0, ones);
  EXPECT_TRUE(at::equal(draw(0, 0, ones.narrow(0, 0, 2)), whole.narrow(0, 0, 2)));
  EXPECT_TRUE(at::equal(draw(1, 2, ones.narrow(0, 2, 3)), whole.narrow(0, 2, 3)));
  EXPECT_TRUE(at::equal(draw(9, 5, ones.narrow(0, 5, 1)), whole.narrow(0, 5, 1)));
  EXPECT_TRUE(
      at::equal(draw(0, 0, ones.narrow(1, 4, 4), DropoutSlice{1, 4, 8}), whole.narrow(1, 4, 4)));
  EXPECT_TRUE(at::equal(draw(1, 2, ones.narrow(0, 2, 3).narrow(2, 1, 2), DropoutSlice{2, 1, 3}),
                        whole.narrow(0, 2, 3).narrow(2, 1, 2)));
  EXPECT_FALSE(at::equal(draw(0, 6, ones), whole));
}

TEST(KeyedDropout, KeepsTheMeanAndTheType) {
  const LayerRun run({.seed = 1}, 0);
  for (const double p : {0.1, 0.5, 0.9}) {
    const at::Tensor y = keyed_dropout(at::ones({100, 1000}), p, true);
    EXPECT_NEAR((y == 0).to(at::kDouble).mean().item<double>(), p, 0.005);
    EXPECT_NEAR(y.mean().item<double>(), 1, 0.05);
  }
  for (const auto type : {at::kBFloat16, at::kHalf, at::kDouble})
    EXPECT_EQ(keyed_dropout(at::ones({2, 3}, type), 0.5, true).scalar_type(), type);
  EXPECT_EQ(keyed_dropout(at::ones({2, 3}), 1, true).sum().item<double>(), 0);
}

TEST(KeyedDropout, GradientUsesTheSameMask) {
  const LayerRun run({.seed = 1}, 0);
  const at::Tensor x = at::rand({4, 6}).requires_grad_();
  const at::Tensor y = keyed_dropout(x, 0.5, true);
  y.sum().backward();
  EXPECT_TRUE(at::allclose(x.grad() * x, y));
}

// The factor 1 / 0.9 is rounded to the type before the product.
TEST(KeyedDropout, HasTheBitsOfAProductWithFactorsOfTheType) {
  const RunKey key{.seed = 3, .step = 5, .example = 7};
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor factors = mask_of(key, 4, 0, 0.1, {6, 40, 8}, at::kDouble).to(type);
    const at::Tensor x = at::randn({6, 8, 40}).to(type).transpose(1, 2).requires_grad_();
    const at::Tensor given = at::randn({6, 40, 8}).to(type);
    const LayerRun run(key, 4);
    const at::Tensor y = keyed_dropout(x, 0.1, true);
    EXPECT_TRUE(at::equal(y, x * factors));
    y.backward(given);
    EXPECT_TRUE(at::equal(x.grad(), given * factors));
  }
}

TEST(KeyedDropout, HasASecondDerivative) {
  const LayerRun run({.seed = 1}, 0);
  const at::Tensor x = at::rand({4, 6}).requires_grad_();
  const at::Tensor y = keyed_dropout(x, 0.5, true);
  const at::Tensor gradient =
      torch::autograd::grad({y.square().sum()}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
  gradient.sum().backward();
  const at::Tensor factors = y.detach() / x.detach();
  EXPECT_TRUE(at::allclose(x.grad(), 2 * factors * factors));
}

TEST(KeyedDropout, LeavesTheTensorAloneWithoutTraining) {
  const LayerRun run({.seed = 1}, 0);
  const at::Tensor x = at::rand({4, 6});
  EXPECT_TRUE(keyed_dropout(x, 0.5, false).is_same(x));
  EXPECT_TRUE(keyed_dropout(x, 0, true).is_same(x));
}

TEST(KeyedDropout, OutsideOfALayerIsTorchs) {
  const at::Tensor x = at::rand({4, 6});
  torch::manual_seed(3);
  const at::Tensor expected = at::dropout(x, 0.5, true);
  torch::manual_seed(3);
  EXPECT_TRUE(at::equal(keyed_dropout(x, 0.5, true), expected));
}

TEST(KeyedDropout, RefusesWhatIsNoProbability) {
  EXPECT_THROW(keyed_dropout(at::ones({2}), 1.5, true), UsageError);
  EXPECT_THROW(keyed_dropout(at::ones({2}), -0.1, true), UsageError);
  EXPECT_THROW(keyed_dropout(at::ones({}), 0.5, true), UsageError);
  EXPECT_THROW(keyed_dropout(at::ones({2, 3}), 0.5, true, DropoutSlice{1, 6, 8}), UsageError);
  EXPECT_THROW(keyed_dropout(at::ones({2, 3}), 0.5, true, DropoutSlice{0, 0, 8}), UsageError);
}

}  // namespace
}  // namespace trestle::nn
