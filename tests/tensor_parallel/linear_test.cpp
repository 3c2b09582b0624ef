#include "trestle/tensor_parallel/linear.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <optional>
#include <string>

#include "tests/tensor_parallel/checks.h"
#include "trestle/base/error.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/seeded.h"
#include "trestle/recompute/checkpoint.h"

namespace trestle::tensor_parallel {
namespace {

using ::testing::HasSubstr;
using trestle::testing::leaf, trestle::testing::refusal_of;

// An MLP of two linear layers in double, and its gradients, by torch alone.
struct Mlp {
  explicit Mlp(std::int64_t inner, at::ScalarType type = at::kDouble) {
    seeded(5, [&] {
      const auto options = at::TensorOptions(type);
      x = torch::randn({2, 7, 6}, options);
      up = torch::randn({inner, 6}, options);
      up_bias = torch::randn({inner}, options);
      down = torch::randn({6, inner}, options);
      down_bias = torch::randn({6}, options);
      with = torch::randn({2, 7, 6}, options);
      return 0;
    });
    for (at::Tensor* one : {&x, &up, &up_bias, &down, &down_bias}) one->set_requires_grad(true);
  }
  at::Tensor forward() const {
    return at::linear(at::linear(x, up, up_bias).relu(), down, down_bias);
  }
  at::Tensor x, up, up_bias, down, down_bias, with;
};

void expect_near(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_TRUE(at::allclose(a, b, 1e-10, 1e-10)) << what << "\n" << (a - b).abs().max();
}

enum class Tokens { Whole, Sharded };

void compare(int size, std::int64_t inner, Tokens tokens) {
  const Mlp plain(inner);
  const at::Tensor expected = plain.forward();
  expected.backward(plain.with);
  spawn(size, [&](World& world) {
    const TensorRanks ranks = TensorRanks(world.group()).of("mlp");
    const nn::IndexRange columns = ranks.own(inner), own = ranks.own(7);
    const auto shard = [&](const at::Tensor& x) {
      return tokens == Tokens::Whole ? x : x.narrow(1, own.begin, own.size);
    };
    const auto slice = [&](const at::Tensor& x, std::int64_t dimension) {
      return x.narrow(dimension, columns.begin, columns.size);
    };
    std::optional<TokenShards> shards;
    if (tokens == Tokens::Sharded) shards = TokenShards{.dimension = 1, .tokens = 7};
    const at::Tensor x = leaf(shard(plain.x)), up = leaf(slice(plain.up, 0));
    const at::Tensor up_bias = leaf(slice(plain.up_bias, 0)), down = leaf(slice(plain.down, 1));
    const at::Tensor down_bias = leaf(plain.down_bias);
    const at::Tensor h = column_product(ranks, x, up, up_bias, shards);
    const at::Tensor y = row_product(ranks, h.relu(), down, down_bias, shards);
    expect_near(y.detach(), shard(expected.detach()), "output");
    y.backward(shard(plain.with));
    expect_near(x.grad(), shard(plain.x.grad()), "input");
    expect_near(up.grad(), slice(plain.up.grad(), 0), "up");
    expect_near(up_bias.grad(), slice(plain.up_bias.grad(), 0), "up's bias");
    expect_near(down.grad(), slice(plain.down.grad(), 1), "down");
    expect_near(down_bias.grad(), plain.down_bias.grad(), "down's bias");
  });
}

TEST(SplitLinear, EqualsTheWholeLayers) {
  for (const int size : {1, 2, 3, 4}) compare(size, 12, Tokens::Whole);
}

// 7 tokens over 2, 3 and 4 ranks.
TEST(SplitLinear, EqualsTheWholeLayersOnShardsOfTheTokens) {
  for (const int size : {1, 2, 3, 4}) compare(size, 12, Tokens::Sharded);
}

TEST(SplitLinear, WidthsThatDoNotDivideAreSplitUnevenly) {
  compare(3, 11, Tokens::Whole);
  compare(4, 5, Tokens::Sharded);
}

// A row layer's bias counts once, whatever the number of ranks: weights of 0 leave the bias alone.
TEST(SplitLinear, AddsARowLayersBiasOnce) {
  spawn(4, [](World& world) {
    const at::Tensor y = row_product(TensorRanks(world.group()), torch::zeros({1, 2}),
                                     torch::zeros({3, 2}), torch::tensor({1.0, 2.0, 3.0}));
    EXPECT_TRUE(at::equal(y, torch::tensor({{1.0, 2.0, 3.0}}))) << y;
  });
}

// Integers in bf16 are exact in each order of sums, so the comparison is to the bit.
TEST(SplitLinear, IntegersInBfloat16AreExact) {
  const at::Tensor x = (torch::arange(2 * 8) % 5 - 2).view({2, 8}).to(at::kBFloat16);
  const at::Tensor weight = (torch::arange(4 * 8) % 3 - 1).view({4, 8}).to(at::kBFloat16);
  const at::Tensor expected = at::linear(x, weight);
  spawn(4, [&](World& world) {
    const TensorRanks ranks(world.group());
    const nn::IndexRange own = ranks.own(8), rows = ranks.own(4);
    const at::Tensor y =
        row_product(ranks, x.narrow(1, own.begin, own.size), weight.narrow(1, own.begin, own.size));
    EXPECT_TRUE(at::equal(y, expected));
    EXPECT_TRUE(at::equal(column_product(ranks, x, weight.narrow(0, rows.begin, rows.size)),
                          expected.narrow(1, rows.begin, rows.size)));
  });
}

TEST(SplitLinear, FrozenWeightsAndInputsGetNoGradient) {
  spawn(2, [](World& world) {
    const TensorRanks ranks(world.group());
    const at::Tensor weight = torch::ones({2, 3}), x = leaf(torch::ones({1, 3}));
    column_product(ranks, x, weight).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), torch::full({1, 3}, 4.0)));
    const at::Tensor trained = leaf(weight), bias = leaf(torch::zeros({2}));
    row_product(ranks, torch::ones({1, 3}), trained, bias).sum().backward();
    EXPECT_TRUE(at::equal(trained.grad(), torch::ones({2, 3})));
    EXPECT_TRUE(at::equal(bias.grad(), torch::ones({2})));
  });
}

// An input is kept for the gradient of the weight alone.
TEST(SplitLinear, FrozenWeightsKeepNoInput) {
  const TensorRanks ranks = TensorRanks::on_paper(0, 2).of("up");
  for (const bool trained : {false, true}) {
    const at::Tensor weight = torch::ones({2, 3}).requires_grad_(trained);
    const at::Tensor to_column = leaf(torch::ones({1, 3})) * 1,
                     to_row = leaf(torch::ones({1, 3})) * 1;
    const at::Tensor column = column_product(ranks, to_column, weight),
                     row = row_product(ranks, to_row, weight);
    EXPECT_EQ(to_column.use_count(), trained ? 2u : 1u);
    EXPECT_EQ(to_row.use_count(), trained ? 2u : 1u);
  }
}

// The halves around a product give that product's column and row layers, with shards too.
TEST(SplitLinear, HalvesAroundAnotherProductEqualTheProducts) {
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({2, 5, 6}), up = torch::randn({4, 6}),
                   down = torch::randn({6, 4}), with = torch::randn({2, 5, 6});
  spawn(2, [&](World& world) {
    const TensorRanks ranks = TensorRanks(world.group()).of("mlp");
    const nn::IndexRange own = ranks.own(4), own_tokens = ranks.own(5);
    for (const bool sharded : {false, true}) {
      const auto shards =
          sharded ? std::optional(TokenShards{.dimension = 1, .tokens = 5}) : std::nullopt;
      const auto tokens = [&](const at::Tensor& all) {
        return sharded ? all.narrow(1, own_tokens.begin, own_tokens.size) : all;
      };
      const at::Tensor own_up = up.narrow(0, own.begin, own.size),
                       own_down = down.narrow(1, own.begin, own.size);
      const at::Tensor first = leaf(tokens(x)), second = leaf(tokens(x));
      const at::Tensor expected = row_product(
          ranks, column_product(ranks, first, own_up, {}, shards), own_down, {}, shards);
      const at::Tensor actual = row_output(
          ranks, at::linear(at::linear(column_input(ranks, second, shards), own_up), own_down),
          shards);
      EXPECT_TRUE(at::allclose(actual, expected, 1e-5, 1e-6));
      expected.backward(tokens(with));
      actual.backward(tokens(with));
      EXPECT_TRUE(at::allclose(second.grad(), first.grad(), 1e-5, 1e-6));
      EXPECT_THAT(refusal_of([&] {
                    column_input(ranks, x, TokenShards{1, 7});
                  }),
                  HasSubstr("of 7 tokens in dimension 1"));
      EXPECT_THAT(refusal_of([&] {
                    row_output(ranks, x, TokenShards{1, 7});
                  }),
                  HasSubstr("takes all 7 tokens in dimension 1"));
    }
  });
}

// Autocast casts as at::linear(), and gradients are fp32 as its.
TEST(SplitLinear, AutocastCastsAsForALinearLayer) {
  const Mlp plain(8, at::kFloat);
  const auto under_autocast = [](const auto& forward) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::Tensor y = forward();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    return y;
  };
  const at::Tensor expected = under_autocast([&] { return plain.forward(); });
  expected.backward(plain.with.to(at::kBFloat16));
  spawn(2, [&](World& world) {
    const TensorRanks ranks(world.group());
    const nn::IndexRange own = ranks.own(8);
    const at::Tensor x = leaf(plain.x), up = leaf(plain.up.narrow(0, own.begin, own.size));
    const at::Tensor up_bias = leaf(plain.up_bias.narrow(0, own.begin, own.size));
    const at::Tensor down = leaf(plain.down.narrow(1, own.begin, own.size));
    const at::Tensor down_bias = leaf(plain.down_bias);
    const at::Tensor y = under_autocast([&] {
      return row_product(ranks, column_product(ranks, x, up, up_bias).relu(), down, down_bias);
    });
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.backward(plain.with.to(at::kBFloat16));
    const auto near = [](const at::Tensor& a, const at::Tensor& b) {
      return a.scalar_type() == b.scalar_type() && at::allclose(a, b, 0.05, 0.1);
    };
    EXPECT_TRUE(near(y, expected));
    EXPECT_TRUE(near(x.grad(), plain.x.grad()));
    EXPECT_TRUE(near(up.grad(), plain.up.grad().narrow(0, own.begin, own.size)));
    EXPECT_TRUE(near(down.grad(), plain.down.grad().narrow(1, own.begin, own.size)));
    EXPECT_TRUE(near(down_bias.grad(), plain.down_bias.grad()));
  });
}

// The thread that computes a sum writes to the tensors of all thread ranks. Its own checkpointed
// function must not restore theirs.
TEST(SplitLinear, CheckpointedFunctionsOfThreadRanksKeepTheirSums) {
  spawn(2, [](World& world) {
    const TensorRanks ranks(world.group());
    const at::Tensor weight = leaf(torch::ones({5, 4}));
    for (int i = 0; i < 200; ++i) {
      const at::Tensor x = leaf(torch::ones({3, 4}));
      const at::Tensor y = nn::checkpoint(
          [&](const at::Tensor& given) { return row_product(ranks, given, weight); }, x);
      ASSERT_TRUE(torch::equal(y, torch::full({3, 5}, 8.0F))) << "rank " << world.rank();
      y.sum().backward();
      ASSERT_TRUE(torch::equal(y, torch::full({3, 5}, 8.0F))) << "after the backward";
    }
  });
}

TEST(SplitLinear, RefusesOtherSizesAndSecondDerivatives) {
  spawn(2, [](World& world) {
    const TensorRanks ranks = TensorRanks(world.group()).of("mlp.up");
    const at::Tensor weight = leaf(torch::ones({4, 3}));
    EXPECT_THAT(refusal_of([&] {
                  column_product(ranks, torch::ones({2, 5}), weight);
                }),
                HasSubstr(" of 2 takes [..., 3], all inputs; got [2, 5]"));
    EXPECT_THAT(refusal_of([&] {
                  column_product(ranks, torch::ones({1, 5, 3}), weight, {}, TokenShards{1, 7});
                }),
                HasSubstr("of 7 tokens in dimension 1; got [1, 5, 3]"));
    EXPECT_THAT(refusal_of([&] {
                  row_product(ranks, torch::ones({1, 5, 3}), weight, {}, TokenShards{1, 7});
                }),
                HasSubstr("takes all 7 tokens in dimension 1; got [1, 5, 3]"));
    const at::Tensor y = column_product(ranks, leaf(torch::ones({2, 3})), weight).sum();
    EXPECT_THAT(refusal_of([&] { torch::autograd::grad({y}, {weight}, {}, {}, true); }),
                HasSubstr("cannot be differentiated twice"));
  });
}

}  // namespace
}  // namespace trestle::tensor_parallel
