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

TEST(CommunicationHooks, AreRefusedForShardedGradientsAndDifferentRanks) {
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
    for (const ShardLevel level : levels) {
      if (level == ShardLevel::None) continue;
      EXPECT_THAT(error_of(world, {.level = level, .buckets = {.hook = mean_hook()}}),
                  AllOf(HasSubstr("communication hook 'mean'"), HasSubstr("Take level None"),
                        HasSubstr("precision.reduce = at::kBFloat16")));
    }
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
