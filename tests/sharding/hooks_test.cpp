// Buckets averaged by a user's function and by PowerSGD, compared with plain libtorch.
#include <gmock/gmock.h>

#include <atomic>

#include "attack.h"
#include "trestle/base/error.h"
#include "trestle/sharding/hooks/powersgd.h"

namespace trestle {
namespace {

using namespace testing;
using sharding::AverageBucket;
using sharding::CommunicationHook;
using sharding::GradientBucket;
using ::testing::HasSubstr;

// The ranks' mean: starts an all-reduce, divides once it is done. `see` inspects each bucket first.
CommunicationHook mean_hook(std::function<void(const GradientBucket&)> see = {}) {
  return {.name = "mean", .make = [see](const comm::Group&) -> AverageBucket {
            return [see](const GradientBucket& bucket) -> std::function<void()> {
              if (see) see(bucket);
              auto sum = bucket.group.all_reduce(bucket.flat);
              return [bucket, sum]() mutable {
                sum.wait();
                bucket.flat.div_(bucket.group.size());
              };
            };
          }};
}

Sharded make_sharded(World& world, const ShardOptions& options, std::shared_ptr<Model>* model) {
  *model = make<TwoLinears>();
  return {std::static_pointer_cast<torch::nn::Module>(*model),
          DeviceMesh(world, {{"replicate", world.size()}}), options};
}

TEST(CommunicationHooks, TrainToPlainModelsWeightsWithRaggedBatchesAndNoSync) {
  constexpr int parts[3][3] = {{3, 2, 1}, {1, 4, 1}, {2, 0, 4}};
  const auto net = make<TwoLinears>();
  torch::optim::Adam plain(net->parameters(), torch::optim::AdamOptions(0.05));
  for (std::uint64_t step = 0; step < 3; ++step) {
    plain.zero_grad();
    net->forward(rows(6, step)).square().mean().backward();
    plain.step();
  }
  spawn(3, [&](World& world) {
    std::vector<GradientBucket> seen;
    std::shared_ptr<Model> own;
    Sharded sharded = make_sharded(
        world, {.buckets = {.size = 256, .first = 128, .hook = mean_hook([&](auto& bucket) {
                                                         seen.push_back(bucket);
                                                       })}},
        &own);
    const auto call = [&](const at::Tensor& x) {
      return sharded.run([&](auto& given) { return own->forward(given); }, x);
    };
    torch::optim::Adam optimizer(sharded.parameters(), torch::optim::AdamOptions(0.05));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const std::int64_t count = parts[step][world.rank()];
      std::int64_t begin = 0;
      for (int rank = 0; rank < world.rank(); ++rank) begin += parts[step][rank];
      const at::Tensor x = rows(6, static_cast<std::uint64_t>(step)).narrow(0, begin, count);
      seen.clear();
      // Accumulates two micro-batches of weight 1/3 and 2/3, or what the rank has.
      if (step == 0) {
        const double first = static_cast<double>(count / 2) / static_cast<double>(count);
        {
          const auto no_sync = sharded.no_sync();
          if (count > 1)
            sharded.backward(call(x.narrow(0, 0, count / 2)).square().mean() * first);
          else
            sharded.backward(call(x).square().mean() * 0);
        }
        EXPECT_TRUE(seen.empty()) << "no hook runs inside no_sync()";
        sharded.backward(
            call(x.narrow(0, count / 2, count - count / 2)).square().mean() * (1 - first),
            static_cast<double>(count));
      } else if (count == 0) {
        sharded.backward_without_samples();
      } else {
        sharded.backward(call(x).square().mean(), static_cast<double>(count));
      }
      optimizer.step();
      std::set<std::string> names;
      for (std::size_t i = 0; i < seen.size(); ++i) {
        EXPECT_EQ(seen[i].index, static_cast<int>(i));
        EXPECT_EQ(seen[i].is_last, i + 1 == seen.size());
        EXPECT_EQ(seen[i].step, step);
        std::int64_t numbers = 0;
        for (const at::Tensor& part : seen[i].gradients) numbers += part.numel();
        EXPECT_LE(numbers, seen[i].flat.numel());
        names.insert(seen[i].names.begin(), seen[i].names.end());
      }
      EXPECT_GT(seen.size(), 1U);
      EXPECT_EQ(names, (std::set<std::string>{"a.weight", "a.bias", "b.weight", "b.bias"}));
    }
    Weights weights;
    for (const auto& item : net->named_parameters()) weights[item.key()] = item.value().detach();
    EXPECT_LT(distance(weights, sharded.state()), 1e-12);
  });
}

// A hook receives the rank's unscaled gradients, with zeros for missing gradients and in the
// padding.
TEST(CommunicationHooks, ReceiveUnscaledGradients) {
  spawn(2, [](World& world) {
    const auto zero_else = [](const GradientBucket& bucket) {
      at::Tensor rest = bucket.flat.clone();
      for (const at::Tensor& part : bucket.gradients)
        rest.narrow(0, part.storage_offset(), part.numel()).zero_();
      return rest.eq(0).all().item<bool>();
    };
    std::map<std::string, at::Tensor> got;
    std::shared_ptr<Model> own;
    Sharded sharded =
        make_sharded(world,
                     {.unused_parameters = UnusedParameters::Find,
                      .buckets = {.hook = mean_hook([&](const GradientBucket& bucket) {
                                    EXPECT_TRUE(zero_else(bucket));
                                    for (std::size_t i = 0; i < bucket.names.size(); ++i)
                                      got[bucket.names[i]] = bucket.gradients[i].clone();
                                  })}},
                     &own);
    const auto alone = make<TwoLinears>();
    const at::Tensor x = rows(2, static_cast<std::uint64_t>(world.rank()));
    const auto loss = [&](Model& net) {
      return net.named_parameters()["a.weight"].mul(x[0].sum()).square().sum();
    };
    for (int step = 0; step < 2; ++step) {
      sharded.zero_grad(), alone->zero_grad();
      sharded.backward(sharded.run([&](auto&) { return loss(*own); }, x));
      loss(*alone).backward();
      EXPECT_TRUE(at::equal(got.at("a.weight"), alone->named_parameters()["a.weight"].grad()));
      EXPECT_TRUE(got.at("b.bias").eq(0).all().item<bool>());
      EXPECT_FALSE(own->named_parameters()["b.bias"].grad().defined());
    }
  });
}

nn::Layers four_linears() {
  nn::Layers net(nn::Seed{3});
  for (int i = 0; i < 4; ++i)
    net.add("linear" + std::to_string(i), [i] {
      torch::nn::Linear linear(i == 0 ? width : 7, i == 3 ? width : 7);
      linear->to(at::kDouble);
      return linear;
    });
  return net;
}

// Four ranks that train with a hook at a level.
Weights trained_with(const CommunicationHook& hook, ShardLevel level,
                     const std::vector<mesh::Dimension>& dimensions) {
  std::vector<Weights> weights(4);
  spawn(4, [&](World& world) {
    Sharded model(four_linears(), DeviceMesh(world, dimensions),
                  {.level = level, .buckets = {.size = 64, .first = 64, .hook = hook}});
    torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(0.05));
    for (std::uint64_t step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      // 1, 1, 1 and 3 rows; then 2, 2, 2 and 0.
      const std::int64_t begin = (step == 0 ? 1 : 2) * world.rank();
      const std::int64_t last = step == 0 ? 3 : 0;
      const std::int64_t count = world.rank() == 3 ? last : (step == 0 ? 1 : 2);
      if (count == 0)
        model.backward_without_samples();
      else
        model.backward(model.forward(rows(6, step).narrow(0, begin, count)).square().mean(),
                       static_cast<double>(count));
      optimizer.step();
    }
    for (auto& [name, tensor] : model.state())
      weights[static_cast<std::size_t>(world.rank())][name] = tensor;
  });
  for (const Weights& other : weights)
    EXPECT_EQ(distance(weights[0], NamedTensors(other.begin(), other.end())), 0);
  return weights[0];
}

// With uneven shares, and a rank without samples.
TEST(CommunicationHooks, TrainToPlainModelsWeightsAtEveryLevel) {
  const nn::Layers net = four_linears();
  torch::optim::Adam plain(net.parameters(), torch::optim::AdamOptions(0.05));
  for (std::uint64_t step = 0; step < 4; ++step) {
    plain.zero_grad();
    net.forward(rows(6, step)).square().mean().backward();
    plain.step();
  }
  Weights expected;
  for (const auto& [name, tensor] : net.named_parameters()) expected[name] = tensor.detach();
  for (const ShardLevel level : sharded_levels) {
    for (const auto& dimensions : {std::vector<mesh::Dimension>{{"shard", 4}},
                                   std::vector<mesh::Dimension>{{"replicate", 2}, {"shard", 2}}}) {
      const auto weights = trained_with(mean_hook(), level, dimensions);
      EXPECT_LT(distance(expected, NamedTensors(weights.begin(), weights.end())), 1e-12)
          << to_string(level);
    }
  }
}

// Wide factors lose nothing; narrow ones give the same numbers at two levels with the same buckets.
TEST(CommunicationHooks, PowerSgdCompressesAtLevelsOfShardedGradients) {
  const auto train = [](std::int64_t rank, ShardLevel level) {
    const auto hook = sharding::powersgd_hook(
        {.approximation_rank = rank, .start_iteration = 1, .min_compression_rate = 1e-3});
    const auto weights = trained_with(hook, level, {{"shard", 4}});
    return NamedTensors(weights.begin(), weights.end());
  };
  const auto exact = trained_with(mean_hook(), ShardLevel::None, {{"replicate", 4}});
  for (const ShardLevel level : sharded_levels)
    EXPECT_LT(distance(exact, train(7, level)), 1e-10) << to_string(level);
  const NamedTensors narrow = train(1, ShardLevel::OptimizerState);
  EXPECT_GT(distance(exact, narrow), 1e-6) << "nothing was compressed";
  EXPECT_EQ(distance(Weights(narrow.begin(), narrow.end()), train(1, ShardLevel::Gradients)), 0);
}

// At most two buckets of whole gradients wait for their average.
TEST(CommunicationHooks, FreeWholeGradientsDuringBackward) {
  int begun = 0, ended = 0, most = 0, buckets = 0;
  spawn(1, [&](World& world) {
    const CommunicationHook hook{.name = "alone", .make = [&](const comm::Group&) -> AverageBucket {
                                   return
                                       [&](const GradientBucket& bucket) -> std::function<void()> {
                                         most = std::max(most, ++begun - ended);
                                         buckets = bucket.index + 1;
                                         return [&] { ++ended; };
                                       };
                                 }};
    Sharded model(
        four_linears(), DeviceMesh(world, {{"shard", 1}}),
        {.level = ShardLevel::Gradients, .buckets = {.size = 64, .first = 64, .hook = hook}});
    model.backward(model.forward(rows(2, 1)).square().mean());
  });
  EXPECT_GT(buckets, 2);
  EXPECT_EQ(most, 2);
}

TEST(CommunicationHooks, ExceptionReachesAllRanks) {
  for (const bool when_it_begins : {true, false}) {
    std::vector<std::string> told(3);
    std::atomic<int> ended = 0;
    spawn(3, [&](World& world) {
      const int rank = world.rank();
      CommunicationHook hook = {.name = "mine", .make = [&](const comm::Group&) -> AverageBucket {
                                  return
                                      [&](const GradientBucket& bucket) -> std::function<void()> {
                                        if (rank == 1 && when_it_begins)
                                          throw std::runtime_error("boom");
                                        auto sum = bucket.group.all_reduce(bucket.flat);
                                        return [&, sum, bucket]() mutable {
                                          if (rank == 1) throw std::runtime_error("boom");
                                          sum.wait();
                                          bucket.group.all_reduce(bucket.flat).wait();
                                        };
                                      };
                                }};
      std::shared_ptr<Model> own;
      Sharded sharded = make_sharded(world, {.buckets = {.hook = hook}}, &own);
      try {
        sharded.backward(
            sharded.run([&](auto& x) { return own->forward(x); }, rows(2, 1)).square().mean());
      } catch (const std::exception& error) {
        told[static_cast<std::size_t>(rank)] = error.what();
      }
      // no rank returns before all ranks have the error
      for (++ended; ended < 3;) std::this_thread::yield();
    });
    EXPECT_THAT(told[1], HasSubstr("boom"));
    for (const std::size_t rank : {0, 2})
      EXPECT_THAT(told[rank], HasSubstr("communication hook 'mine', bucket 0: boom"));
  }
}

TEST(CommunicationHooks, AreRefusedWhereRanksMayWaitForEachOther) {
  const auto error_of = [](World& world, const ShardOptions& options) -> std::string {
    try {
      const Sharded sharded(std::static_pointer_cast<torch::nn::Module>(make<TwoLinears>()),
                            DeviceMesh(world, {{"shard", 2}}), options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  spawn(2, [&](World& world) {
    EXPECT_THAT(error_of(world, {.level = ShardLevel::Parameters,
                                 .unused_parameters = UnusedParameters::Find,
                                 .buckets = {.hook = mean_hook()}}),
                AllOf(HasSubstr("communication hook 'mean' at level Parameters"),
                      HasSubstr("UnusedParameters::Find"), HasSubstr("Take level Gradients")));
    EXPECT_THAT(
        error_of(world, {.buckets = {.hook = mean_hook()}, .reproducible = {.micro_batches = 2}}),
        HasSubstr("hook 'mean' with ShardOptions::reproducible"));
    CommunicationHook other = mean_hook();
    if (world.rank() == 1) other.name = "other";
    EXPECT_THAT(error_of(world, {.buckets = {.hook = other}}),
                HasSubstr("ShardOptions::buckets.hook is 'mean' on rank 0 and 'other' on rank 1"));
    EXPECT_THROW(sharding::powersgd_hook({.start_iteration = 0}), UsageError);
  });
}

// With P and Q as wide as the matrix, compression is lossless. The test shows that state follows
// the buckets rebuilt in step 2.
TEST(CommunicationHooks, PowerSgdFollowsRebuiltBuckets) {
  for (const bool low : {false, true}) {
    Trial trial{
        .model = [] { return make<TwoLinears>(); },
        .options = {.buckets = {.size = 256,
                                .first = 128,
                                .hook = sharding::powersgd_hook({.approximation_rank = low ? 1 : 7,
                                                                 .start_iteration = 1,
                                                                 .min_compression_rate = 1e-3})}},
        .steps = 5,
        .optimizer =
            [](std::vector<at::Tensor> parameters) {
              return std::make_shared<torch::optim::SGD>(parameters, 0.1);
            }};
    const Weights expected = plainly(trial);
    spawn(2, [&](World& world) {
      const Weights weights = sharded(trial, world, ShardLevel::None);
      const double far = distance(expected, NamedTensors(weights.begin(), weights.end()));
      if (low)
        EXPECT_GT(far, 1e-6) << "nothing was compressed";
      else
        EXPECT_LT(far, 1e-10);
    });
  }
}

}  // namespace
}  // namespace trestle
