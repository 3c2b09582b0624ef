// Equal bits on any number of ranks and at any level (ShardOptions::reproducible), and the settings
// that are refused because bits would differ.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/sharding/reproducible_training.h"
#include "tests/sharding/rows.h"
#include "trestle/base/error.h"
#include "trestle/sharding/options/reproducible.h"

namespace trestle::testing {
namespace {

using ::testing::HasSubstr;

ShardOptions reproducible(ShardLevel level) {
  return {.level = level,
          .buckets = {.size = 4096, .first = 512},
          .reproducible = {.micro_batches = pieces},
          .seed = 5};
}

const NamedTensors& one_ranks_weights() {
  static const NamedTensors weights = train_bits_on(1, {.options = reproducible(ShardLevel::None)});
  return weights;
}

class ReproducibleRanks : public ::testing::TestWithParam<int> {};

TEST_P(ReproducibleRanks, HaveBitsOfOneRank) {
  for (const ShardLevel level : levels)
    EXPECT_TRUE(equal_bits(one_ranks_weights(),
                           train_bits_on(GetParam(), {.options = reproducible(level)})))
        << to_string(level);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ReproducibleRanks, ::testing::Values(1, 2, 4, 8));

// Without the option bits differ; otherwise the test above would prove nothing.
TEST(Reproducible, RanksDifferWithoutOption) {
  const BitsTraining training{.options = {.level = ShardLevel::Gradients}, .dropout = 0};
  const NamedTensors one = train_bits_on(1, training), four = train_bits_on(4, training);
  EXPECT_FALSE(equal_bits(one, four));
  for (std::size_t i = 0; i < one.size(); ++i)
    EXPECT_LT((one[i].second - four[i].second).abs().max().item<double>(), 1e-3) << one[i].first;
}

// Sums over the ranks of a row, then over the rows.
TEST(Reproducible, KeepsBitsOnMeshOfTwoDimensions) {
  for (const auto& [rows, columns] : {std::pair{2, 2}, std::pair{2, 4}, std::pair{4, 2}}) {
    spawn(rows * columns,
          [&, rows = rows, columns = columns](World& world) {
            const DeviceMesh mesh(world, {{"replicate", rows}, {"shard", columns}});
            for (const ShardLevel level : {ShardLevel::Gradients, ShardLevel::Parameters}) {
              const NamedTensors weights =
                  train_bits(mesh, world, {.options = reproducible(level)});
              EXPECT_TRUE(equal_bits(one_ranks_weights(), weights)) << to_string(level);
            }
          },
          {.threads = 1});
  }
}

TEST(Reproducible, KeepsBitsForEveryOptimizerAndNorm) {
  const optim::OptimizerOptions optimizers[] = {{.name = "sgd", .momentum = 0.9, .nesterov = true},
                                                {.name = "adam", .weight_decay = 0.1},
                                                {.name = "rmsprop", .momentum = 0.9}};
  const double norms[] = {1, 3, INFINITY};
  for (std::size_t i = 0; i < 3; ++i) {
    BitsTraining training{.options = reproducible(ShardLevel::None),
                          .optimizer = optimizers[i],
                          .steps = 3,
                          .p = norms[i]};
    const NamedTensors one = train_bits_on(1, training);
    training.options.level = ShardLevel::Gradients;
    EXPECT_TRUE(equal_bits(one, train_bits_on(4, training))) << optimizers[i].name;
  }
}

TEST(Reproducible, KeepsBitsInLowPrecisionWithMasterWeights) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    BitsTraining training{.options = reproducible(ShardLevel::Parameters), .steps = 4};
    training.options.precision = {.parameters = at::kBFloat16, .reduce = type};
    EXPECT_TRUE(equal_bits(train_bits_on(1, training), train_bits_on(4, training)));
  }
}

// A shard's step, cut at multiples of 16 elements as shards are, has the bits of the whole tensor's
// step.
TEST(Reproducible, OptimizersTreatEachElementAlike) {
  constexpr std::int64_t count = 1009;
  for (const std::string name : {"sgd", "adam", "adamw", "rmsprop"}) {
    const optim::OptimizerOptions options{.name = name,
                                          .learning_rate = 0.02,
                                          .weight_decay = 0.1,
                                          .momentum = name == "sgd" || name == "rmsprop" ? 0.9 : 0};
    const auto train = [&](const std::vector<std::int64_t>& cuts) {
      std::vector<at::Tensor> parts;
      const at::Tensor weights = random({count}, 1);
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
        parts.push_back(weights.narrow(0, cuts[i], cuts[i + 1] - cuts[i]).clone());
      const auto optimizer = optim::make_optimizer(parts, options);
      for (int step = 0; step < 5; ++step) {
        const at::Tensor gradient = random({count}, 10 + step);
        for (std::size_t i = 0; i < parts.size(); ++i)
          parts[i].mutable_grad() = gradient.narrow(0, cuts[i], parts[i].numel()).clone();
        optimizer->step();
      }
      return torch::cat(parts);
    };
    const at::Tensor whole = train({0, count});
    EXPECT_TRUE(whole.equal(train({0, 16, 48, 112, 512, 1008, count}))) << name;
  }
}

TEST(Reproducible, ExactNormDoesNotDependOnShards) {
  at::Tensor whole = at::empty({2001}, at::kDouble);
  whole.mutable_grad() = random({2001}, 3).to(at::kDouble).exp();
  for (const double p : {1.0, 2.0, 2.5, double(INFINITY)}) {
    const double expected = sharding::exact_norm({whole}, {}, p);
    EXPECT_NEAR(expected, whole.grad().norm(p).item<double>(), 1e-9 * expected);
    std::vector<at::Tensor> parts;
    for (const auto& gradient : whole.grad().tensor_split(7)) {
      parts.push_back(at::empty_like(gradient));
      parts.back().mutable_grad() = gradient;
    }
    std::reverse(parts.begin(), parts.end());
    EXPECT_EQ(expected, sharding::exact_norm(parts, {}, p));
    spawn(3, [&](World& world) {
      at::Tensor own = at::empty({667}, at::kDouble);
      own.mutable_grad() = whole.grad().narrow(0, 667 * world.rank(), 667);
      EXPECT_EQ(expected, sharding::exact_norm({own}, world.group(), p));
    });
  }
  for (const double value : {0.0, 1e-320, 1e-200, 1e300}) {
    whole.mutable_grad() = at::full({2001}, value, at::kDouble);
    EXPECT_NEAR(sharding::exact_norm({whole}, {}, 2), value * std::sqrt(2001.0), 1e-3 * value);
  }
  whole.mutable_grad()[5] = INFINITY;
  EXPECT_TRUE(std::isinf(sharding::exact_norm({whole}, {}, 2)));
  whole.mutable_grad()[9] = NAN;
  EXPECT_TRUE(std::isnan(sharding::exact_norm({whole}, {}, 2)));
}

// Gradients from before a step count once; those of an abandoned step do not count.
TEST(Reproducible, AccumulatesGradientsAndRestartsSteps) {
  for (const ShardLevel level : levels) {
    std::vector<NamedTensors> results;
    for (const int ranks : {1, 4}) {
      results.push_back(spawn(
          ranks,
          [&](World& world) {
            const DeviceMesh mesh(world, {{"shard", ranks}});
            Sharded sharded(bits_net(0), mesh, reproducible(level));
            const auto optimizer =
                optim::make_optimizer(sharded.parameters(), {.name = "sgd", .learning_rate = 0.1});
            const auto xs = random({2 * pieces, 2, 6, 6}, 1).chunk(pieces);
            const auto backward = [&](int piece) {
              sharded.backward(
                  sharded.forward(xs[static_cast<std::size_t>(piece)]).square().mean());
            };
            if (ranks == 1) {
              for (int piece = 0; piece < 3; ++piece) backward(piece);
              sharded.zero_grad();
            }
            for (int step = 0; step < 2; ++step)
              for (const int piece : sharded.own_micro_batches()) backward(piece);
            optimizer->step();
            return sharded.state();
          },
          {.threads = 1})[0]);
    }
    EXPECT_TRUE(equal_bits(results[0], results[1])) << to_string(level);
  }
}

TEST(Reproducible, RefusesSettingsThatChangeBits) {
  const auto message = [](int ranks, std::vector<mesh::Dimension> dimensions, ShardOptions options,
                          int threads = 1) {
    try {
      spawn(ranks,
            [&](World& world) {
              const DeviceMesh mesh(world, dimensions);
              Sharded sharded(bits_net(0), mesh, options);
              sharded.forward(random({1, 2, 6, 6}, 1));
            },
            {.threads = threads});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  ShardOptions options = reproducible(ShardLevel::Gradients);
  EXPECT_EQ(message(2, {{"shard", 2}}, options), "");
  EXPECT_THAT(message(2, {{"shard", 2}}, options, 2), HasSubstr("computes with 2 threads"));
  EXPECT_THAT(message(3, {{"shard", 3}}, options), HasSubstr("over 3 ranks"));
  EXPECT_THAT(message(4, {{"shard", 2}, {"replicate", 2}}, options),
              HasSubstr("'replicate' before 'shard'"));
  options.level = ShardLevel::None;
  EXPECT_EQ(message(4, {{"shard", 2}, {"replicate", 2}}, options), "");
  options.reproducible.micro_batches = 6;
  EXPECT_THAT(message(2, {{"shard", 2}}, options), HasSubstr("power of two"));
  spawn(1,
        [&](World& world) {
          const DeviceMesh mesh(world, {{"shard", 1}});
          Sharded sharded(bits_net(0), mesh, reproducible(ShardLevel::None));
          const at::Tensor loss = sharded.forward(random({1, 2, 6, 6}, 1)).sum();
          EXPECT_THROW(sharded.backward(loss, 3.0), UsageError);
          EXPECT_THROW(sharded.no_sync(), UsageError);
          EXPECT_THROW(sharded.backward_without_samples(), UsageError);
          Sharded plain(bits_net(0), mesh);
          EXPECT_THROW(plain.own_micro_batches(), UsageError);
        },
        {.threads = 1});
}

}  // namespace
}  // namespace trestle::testing
