#include <gmock/gmock.h>
#include <torch/torch.h>

#include <string>
#include <type_traits>

#include "tests/tensor_parallel/checks.h"
#include "trestle/base/error.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/tensor_parallel/operators.h"

namespace trestle::tensor_parallel {
namespace {

using ::testing::HasSubstr;
using trestle::testing::leaf, trestle::testing::refusal_of;

// Rank r of 4 holds rows of r + 1: the sums of Megatron's tests are multiples of 10.
at::Tensor of_rank(int rank, at::IntArrayRef sizes) {
  return torch::full(sizes, rank + 1.0, torch::kDouble);
}

void expect_equal(const at::Tensor& x, const at::Tensor& expected) {
  ASSERT_EQ(x.sizes(), expected.sizes());
  EXPECT_TRUE(at::equal(x, expected)) << x << "\nexpected\n" << expected;
}

at::Tensor gradient_of(const at::Tensor& y, const at::Tensor& x, const at::Tensor& with) {
  return torch::autograd::grad({y}, {x}, {with})[0];
}

template <class Body>
void on_ranks(int size, const Body& body) {
  spawn(size, [&](World& world) { body(TensorRanks(world.group()).of("layer")); });
}

// x[rank] along the last dimension, with `columns` columns for each rank.
at::Tensor columns_of_ranks(int ranks, std::int64_t rows, std::int64_t columns) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(of_rank(rank, {rows, columns}));
  return at::cat(all, 1);
}

TEST(Operators, BranchIsIdentityAndAddsGradients) {
  on_ranks(4, [](const TensorRanks& ranks) {
    const at::Tensor x = leaf(torch::arange(6, torch::kDouble).view({2, 3}));
    const at::Tensor y = branch(ranks, Replicated(x)).tensor;
    expect_equal(y, x);
    expect_equal(gradient_of(y, x, of_rank(ranks.rank(), {2, 3})),
                 torch::full({2, 3}, 10.0, torch::kDouble));
  });
}

TEST(Operators, ReduceAddsAndPassesTheGradient) {
  on_ranks(4, [](const TensorRanks& ranks) {
    const at::Tensor x = leaf(of_rank(ranks.rank(), {2, 3}));
    const at::Tensor y = reduce(ranks, Partial(x)).tensor;
    expect_equal(y, torch::full({2, 3}, 10.0, torch::kDouble));
    const at::Tensor gradient = torch::arange(6, torch::kDouble).view({2, 3});
    expect_equal(gradient_of(y, x, gradient), gradient);
    expect_equal(x, of_rank(ranks.rank(), {2, 3}));
  });
}

TEST(Operators, ScatterKeepsTheOwnSliceAndGathersGradients) {
  on_ranks(4, [](const TensorRanks& ranks) {
    const at::Tensor x = leaf(columns_of_ranks(4, 3, 2));
    const Sharded y = scatter(ranks, Replicated(x), -1);
    EXPECT_EQ(y.dimension, 1);
    EXPECT_EQ(y.whole, 8);
    expect_equal(y.tensor, of_rank(ranks.rank(), {3, 2}));
    expect_equal(gradient_of(y.tensor, x, of_rank(ranks.rank(), {3, 2})),
                 columns_of_ranks(4, 3, 2));
  });
}

TEST(Operators, GatherKeepsTheOwnSliceOfTheGradient) {
  on_ranks(4, [](const TensorRanks& ranks) {
    const at::Tensor x = leaf(of_rank(ranks.rank(), {3, 2}));
    const at::Tensor y = gather(ranks, Sharded(x, 1, 8)).tensor;
    expect_equal(y, columns_of_ranks(4, 3, 2));
    expect_equal(gradient_of(y, x, columns_of_ranks(4, 3, 2)), of_rank(ranks.rank(), {3, 2}));
  });
}

// Rank r gets the r-th slice of every rank's gradient, added up: Megatron's 10 at t = 4.
TEST(Operators, GatherBranchedAddsTheGradientsOfAllRanks) {
  on_ranks(4, [](const TensorRanks& ranks) {
    const at::Tensor x = leaf(of_rank(ranks.rank(), {3, 2}));
    const at::Tensor y = gather_branched(ranks, Sharded(x, 1, 8)).tensor;
    expect_equal(y, columns_of_ranks(4, 3, 2));
    const at::Tensor gradient = columns_of_ranks(4, 3, 2) * (ranks.rank() + 1);
    expect_equal(gradient_of(y, x, gradient), of_rank(ranks.rank(), {3, 2}) * 10);
  });
}

TEST(Operators, ReduceScatterAddsAndGathersGradients) {
  on_ranks(4, [](const TensorRanks& ranks) {
    const at::Tensor x = leaf(columns_of_ranks(4, 3, 2) * (ranks.rank() + 1));
    const Sharded y = reduce_scatter(ranks, Partial(x), 1);
    expect_equal(y.tensor, of_rank(ranks.rank(), {3, 2}) * 10);
    expect_equal(gradient_of(y.tensor, x, of_rank(ranks.rank(), {3, 2})),
                 columns_of_ranks(4, 3, 2));
  });
}

// The three operators of sequence shards are those above along the tokens. The rank's values are
// those of Megatron's tests of mappings: all ranks' rows and 4 x 1 + 2 = 6 and 5 + 6 + 7 + 4 = 22
// come from adding row by row.
TEST(Operators, SequenceShardsAreShardsOfTheTokens) {
  on_ranks(4, [](const TensorRanks& ranks) {
    const at::Tensor tokens = torch::arange(8, torch::kDouble).view({1, 8, 1}).expand({2, 8, 3});
    const at::Tensor own = tokens.narrow(1, 2 * ranks.rank(), 2);
    const at::Tensor x = leaf(tokens), shard = leaf(own);
    expect_equal(scatter(ranks, Replicated(x), 1).tensor, own);
    const Branched whole = gather_branched(ranks, Sharded(shard, 1, 8));
    expect_equal(whole.tensor, tokens);
    expect_equal(gradient_of(whole.tensor, shard, tokens + ranks.rank()), own * 4 + 6);
    const Sharded sum = reduce_scatter(ranks, Partial(leaf(tokens + ranks.rank())), 1);
    expect_equal(sum.tensor, own * 4 + 6);
  });
}

// Megatron's numbers: each rank's value r gives the sum 6, and 4 + r gives 22.
TEST(Operators, SumsOfMegatronsMappings) {
  on_ranks(4, [](const TensorRanks& ranks) {
    const at::Tensor x = leaf(torch::full({4, 4}, ranks.rank() * 1.0));
    expect_equal(reduce(ranks, Partial(x)).tensor, torch::full({4, 4}, 6.0));
    const at::Tensor y = branch(ranks, Replicated(x)).tensor;
    expect_equal(gradient_of(y, x, torch::full({4, 4}, ranks.rank() + 4.0)),
                 torch::full({4, 4}, 22.0));
  });
}

TEST(Operators, ExchangeMovesShardsToAnotherDimension) {
  on_ranks(3, [](const TensorRanks& ranks) {
    const at::Tensor whole = torch::arange(60, torch::kDouble).view({2, 5, 6});
    const nn::IndexRange tokens = ranks.own(5), heads = ranks.own(6);
    const at::Tensor x = leaf(whole.narrow(1, tokens.begin, tokens.size));
    const Sharded y = exchange(ranks, Sharded(x, 1, 5), 2);
    expect_equal(y.tensor, whole.narrow(2, heads.begin, heads.size));
    expect_equal(gradient_of(y.tensor, x, y.tensor.detach()), x.detach());
    expect_equal(exchange(ranks, y, 1).tensor, x.detach());
  });
}

// 7 indices over 4 ranks are shards of 2, 2, 2 and 1, and 3 indices leave a rank without any.
TEST(Operators, UnevenShardsAreExact) {
  for (const std::int64_t tokens : {7, 3, 1}) {
    on_ranks(4, [&](const TensorRanks& ranks) {
      const at::Tensor whole = torch::arange(2 * tokens * 3, torch::kDouble).view({2, tokens, 3});
      const nn::IndexRange range = ranks.own(tokens);
      const at::Tensor own = whole.narrow(1, range.begin, range.size);
      const at::Tensor x = leaf(whole), shard = leaf(own);
      const Sharded scattered = scatter(ranks, Replicated(x), 1);
      expect_equal(scattered.tensor, own);
      expect_equal(gradient_of(scattered.tensor, x, own), whole);
      expect_equal(gather(ranks, Sharded(shard, 1, tokens)).tensor, whole);
      const at::Tensor branched = gather_branched(ranks, Sharded(shard, 1, tokens)).tensor;
      expect_equal(gradient_of(branched, shard, whole * (ranks.rank() + 1)), own * 10);
      expect_equal(reduce_scatter(ranks, Partial(leaf(whole * (ranks.rank() + 1))), 1).tensor,
                   own * 10);
    });
  }
}

TEST(Operators, OneRankAloneGetsItsTensorBack) {
  const TensorRanks alone;
  const at::Tensor x = leaf(torch::ones({2, 4}));
  EXPECT_TRUE(branch(alone, Replicated(x)).tensor.is_same(x));
  EXPECT_TRUE(reduce(alone, Partial(x)).tensor.is_same(x));
  EXPECT_TRUE(scatter(alone, Replicated(x), 1).tensor.is_same(x));
  EXPECT_TRUE(gather(alone, Sharded(x, 1, 4)).tensor.is_same(x));
  EXPECT_TRUE(gather_branched(alone, Sharded(x, 1, 4)).tensor.is_same(x));
  EXPECT_TRUE(reduce_scatter(alone, Partial(x), 1).tensor.is_same(x));
  EXPECT_TRUE(exchange(alone, Sharded(x, 1, 4), 0).tensor.is_same(x));
  on_ranks(1, [&](const TensorRanks& ranks) { EXPECT_TRUE(ranks.alone()); });
}

TEST(Operators, BranchedParametersSendOneMessageAndSkipUndefinedOnes) {
  on_ranks(2, [](const TensorRanks& ranks) {
    const at::Tensor weight = leaf(torch::ones({3})), bias = leaf(torch::zeros({3}));
    const auto views = branch_parameters(ranks, {weight, at::Tensor(), bias});
    EXPECT_FALSE(views[1].defined());
    ((views[0] * (ranks.rank() + 1)).sum() + (views[2] * 5).sum()).backward();
    expect_equal(weight.grad(), torch::full({3}, 3.0));
    expect_equal(bias.grad(), torch::full({3}, 10.0));
  });
}

// The gradient of a gradient: d/dx of the sum of (2 x)^2 over what four ranks compute.
TEST(Operators, GradientsCanBeDifferentiatedAgain) {
  on_ranks(4, [](const TensorRanks& ranks) {
    const at::Tensor x = leaf(torch::arange(1, 5, torch::kDouble));
    const at::Tensor part = branch(ranks, Replicated(x)).tensor.pow(3) * (ranks.rank() + 1);
    const at::Tensor y = reduce(ranks, Partial(part)).tensor.sum();
    const at::Tensor first = torch::autograd::grad({y}, {x}, {}, {}, /*create_graph=*/true)[0];
    expect_equal(first, 30 * x.detach().square());
    expect_equal(gradient_of(first.sum(), x, torch::ones({}, torch::kDouble)), 60 * x.detach());
  });
}

template <class From>
concept CanBranch = requires(const TensorRanks& ranks, const From& x) {
  branch(ranks, x);
};
template <class From>
concept CanReduce = requires(const TensorRanks& ranks, const From& x) {
  reduce(ranks, x);
};
template <class From>
concept CanGather = requires(const TensorRanks& ranks, const From& x) {
  gather(ranks, x);
};
template <class From>
concept CanScatter = requires(const TensorRanks& ranks, const From& x) {
  scatter(ranks, x, 0);
};
template <class From>
concept CanReduceScatter = requires(const TensorRanks& ranks, const From& x) {
  reduce_scatter(ranks, x, 0);
};
template <class From>
concept CanExchange = requires(const TensorRanks& ranks, const From& x) {
  exchange(ranks, x, 0);
};

// Each operator takes one layout alone, and a Branched tensor is made by operators alone.
TEST(Operators, WrongPairsDoNotCompile) {
  static_assert(CanBranch<Replicated> && !CanBranch<Branched> && !CanBranch<Partial> &&
                !CanBranch<Sharded> && !CanBranch<at::Tensor>);
  static_assert(CanReduce<Partial> && !CanReduce<Branched> && !CanReduce<Replicated> &&
                !CanReduce<Sharded> && !CanReduce<at::Tensor>);
  static_assert(CanGather<Sharded> && !CanGather<Branched> && !CanGather<Replicated> &&
                !CanGather<Partial> && !CanGather<at::Tensor>);
  static_assert(CanScatter<Replicated> && !CanScatter<Branched> && !CanScatter<Partial> &&
                !CanScatter<Sharded>);
  static_assert(CanReduceScatter<Partial> && !CanReduceScatter<Replicated> &&
                !CanReduceScatter<Branched> && !CanReduceScatter<Sharded>);
  static_assert(CanExchange<Sharded> && !CanExchange<Replicated> && !CanExchange<Partial>);
  static_assert(!std::is_constructible_v<Branched, at::Tensor>);
  static_assert(!std::is_convertible_v<at::Tensor, Replicated>);
}

// The classic silent bugs, with plain tensors between the operators.
TEST(Operators, PlainTensorsOfWrongPairsAreRefused) {
  on_ranks(2, [](const TensorRanks& ranks) {
    const at::Tensor x = leaf(torch::ones({2, 4})), w = leaf(torch::ones({4, 4}));
    const at::Tensor shard = leaf(torch::ones({2, 2}));
    // Whole work behind gather_branched() or branch(): the gradient would be t times too large.
    const at::Tensor twice = gather_branched(ranks, Sharded(shard, 1, 4)).tensor.relu();
    EXPECT_THAT(refusal_of([&] { Replicated{twice.mm(w)}; }), HasSubstr("cannot be Replicated"));
    const at::Tensor branched = branch(ranks, Replicated(x)).tensor;
    EXPECT_THAT(refusal_of([&] { Replicated{branched.mm(w) + x}; }),
                HasSubstr("of which each rank has a part of the gradient"));
    // A part of the work behind gather() or reduce(): each rank would miss other ranks' terms.
    const at::Tensor gathered = gather(ranks, Sharded(shard, 1, 4)).tensor.relu();
    EXPECT_THAT(refusal_of([&] { Sharded(gathered.mm(w), 1, 8); }), HasSubstr("cannot be Sharded"));
    const at::Tensor reduced = reduce(ranks, Partial(x * 2)).tensor;
    EXPECT_THAT(refusal_of([&] { Partial{reduced.mm(w)}; }), HasSubstr("gather_branched()"));
    // The right pairs.
    const Sharded h(branch(ranks, Replicated(reduced)).tensor.mm(w), 1, 8);
    EXPECT_NO_THROW(Replicated{reduced + reduce(ranks, Partial(h.tensor.mm(w))).tensor});
  });
}

TEST(Operators, RefuseShardsOfAnotherSizeAndDimensionsThatDoNotExist) {
  on_ranks(2, [](const TensorRanks& ranks) {
    const at::Tensor x = torch::ones({2, 3});
    EXPECT_THAT(
        refusal_of([&] { gather(ranks, Sharded(x, 1, 8)); }),
        HasSubstr("of 2 tensor ranks holds 4 of 8 indices of dimension 1; its tensor has 3"));
    EXPECT_THAT(refusal_of([&] { scatter(ranks, Replicated(x), 2); }),
                HasSubstr("has no dimension 2"));
    EXPECT_THAT(refusal_of([&] { exchange(ranks, Sharded(x, 1, 6), -1); }),
                HasSubstr("to the same one"));
  });
  EXPECT_THAT(refusal_of([] { TensorRanks{comm::Group()}; }), HasSubstr("need a group"));
  EXPECT_THAT(refusal_of([] { TensorRanks::on_paper(2, 2); }), HasSubstr("no tensor rank 2 of 2"));
}

// Nothing is sent on paper, and all shapes are those of a rank.
TEST(Operators, RanksOnPaperKeepShapes) {
  const TensorRanks ranks = TensorRanks::on_paper(1, 4);
  const at::Tensor x = leaf(torch::ones({2, 6}));
  EXPECT_EQ(scatter(ranks, Replicated(x), 1).tensor.sizes(), at::IntArrayRef({2, 2}));
  const at::Tensor shard = leaf(torch::ones({2, 2}));
  const at::Tensor whole = gather_branched(ranks, Sharded(shard, 1, 6)).tensor;
  EXPECT_EQ(whole.sizes(), at::IntArrayRef({2, 6}));
  EXPECT_EQ(gradient_of(whole, shard, whole).sizes(), shard.sizes());
  EXPECT_EQ(reduce(ranks, Partial(x)).tensor.sizes(), x.sizes());
}

// A rank that fails ends the wait of the other ranks, whose error names the layer.
TEST(Operators, ErrorsNameTheLayerThatWaited) {
  std::string message;
  try {
    spawn(2, [](World& world) {
      const TensorRanks ranks = TensorRanks(world.group()).of("blocks.3.mlp.down");
      if (ranks.rank() == 1) throw UsageError("rank 1 stops");
      try {
        reduce(ranks, Partial(torch::ones({2})));
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("while the tensor ranks added up 'blocks.3.mlp.down'"));
        throw;
      }
    });
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("rank 1 stops"));
}

}  // namespace
}  // namespace trestle::tensor_parallel
