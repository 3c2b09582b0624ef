// Ranks with different numbers of batches, compared with libtorch alone on all batches.
#include <gmock/gmock.h>

#include <atomic>

#include "join_nets.h"
#include "trestle/base/error.h"
#include "trestle/nn/layers.h"
#include "trestle/sharding/hooks/hooked.h"
#include "trestle/sharding/join.h"
#include "trestle/sync_batch_norm/sync_batch_norm.h"

namespace trestle {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;

enum class Average { AllRanks, RanksWithBatches, Samples };

struct Uneven {
  std::vector<int> batches;  // of each rank
  int replicate = 1;         // rows of the mesh
};

at::Tensor batch_of(int rank, int step) {
  return rows(1 + (rank + step) % 3, static_cast<std::uint64_t>(100 * rank + step));
}

Weights plainly(const Uneven& given, Average average) {
  const auto net = make<TwoLinears>();
  AdamW optimizer(net->parameters(), AdamWOptions(0.05));
  for (int step = 0;; ++step) {
    at::Tensor loss;
    double divisor = 0;
    for (std::size_t rank = 0; rank < given.batches.size(); ++rank) {
      if (given.batches[rank] <= step) continue;
      const at::Tensor x = batch_of(static_cast<int>(rank), step);
      const double weight = average == Average::Samples ? static_cast<double>(x.size(0)) : 1;
      const at::Tensor own = net->forward(x).square().mean() * weight;
      loss = loss.defined() ? loss + own : own;
      divisor += weight;
    }
    if (!loss.defined()) return weights_of(*net);
    if (average == Average::AllRanks) divisor = static_cast<double>(given.batches.size());
    optimizer.zero_grad();
    (loss / divisor).backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    optimizer.step();
  }
}

void train_joined(World& world, const Uneven& given, ShardLevel level, Average average,
                  const Weights& expected) {
  const int columns = world.size() / given.replicate;
  const DeviceMesh mesh(world, {{"replicate", given.replicate}, {"shard", columns}});
  const nn::Layers net = in_layers();
  Sharded sharded(net, mesh, {.level = level, .buckets = {.size = 256, .first = 128}});
  AdamW optimizer(sharded.parameters(), AdamWOptions(0.05));
  const auto step_with = [&] {
    sharded.clip_grad_norm(0.5);
    optimizer.step();
  };
  const int own = given.batches[static_cast<std::size_t>(world.rank())];
  const auto batches = [&] {
    for (int step = 0; step < own; ++step) {
      const at::Tensor x = batch_of(world.rank(), step);
      optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
      const at::Tensor loss = sharded.forward(x).square().mean();
      if (average == Average::Samples)
        sharded.backward(loss, static_cast<double>(x.size(0)));
      else if (step % 2 == 0)
        sharded.backward(loss);
      else
        loss.backward();
      step_with();
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(sharded.forward(x).isfinite().all().item<bool>());
    }
  };
  join({&sharded}, batches,
       {.divide = average == Average::RanksWithBatches ? JoinOptions::Divide::RanksWithBatches
                                                       : JoinOptions::Divide::AllRanks,
        .after_backward = step_with});
  EXPECT_LT(distance(expected, sharded.state()), 1e-12) << "rank " << world.rank();
}

TEST(Join, TrainsAsPlainLibtorchOnAllBatchesAtEveryLevel) {
  const Uneven cases[] = {{{3, 1}}, {{0, 2, 4}}, {{2, 0, 3, 1}}, {{0, 3, 1, 2}, 2}};
  for (const Uneven& given : cases) {
    for (const Average average : {Average::AllRanks, Average::RanksWithBatches, Average::Samples}) {
      const Weights expected = plainly(given, average);
      for (const ShardLevel level : levels) {
        SCOPED_TRACE(std::string(to_string(level)) + ", average " +
                     std::to_string(static_cast<int>(average)));
        spawn(static_cast<int>(given.batches.size()),
              [&](World& world) { train_joined(world, given, level, average, expected); },
              {.deadline = std::chrono::seconds(20)});
      }
    }
  }
}

// Windows of three backwards, of which the last reduces; two forwards run before their backwards.
TEST(Join, ShadowsNoSyncAndForwardsBeforeBackwards) {
  constexpr int windows[] = {1, 3};
  const auto net = make<TwoLinears>();
  torch::optim::Adam plain(net->parameters(), torch::optim::AdamOptions(0.05));
  for (int window = 0; window < 3; ++window) {
    plain.zero_grad();
    for (int rank = 0; rank < 2; ++rank)
      for (int micro = 0; micro < 3 && window < windows[rank]; ++micro)
        (net->forward(batch_of(rank, 10 * window + micro)).square().mean() / 6).backward();
    plain.step();
  }
  for (const ShardLevel level : levels) {
    SCOPED_TRACE(std::string(to_string(level)));
    spawn(2, [&](World& world) {
      const nn::Layers own = in_layers();
      Sharded sharded(own, DeviceMesh(world, {{"shard", 2}}),
                      {.level = level, .buckets = {.size = 256}});
      torch::optim::Adam optimizer(sharded.parameters(), torch::optim::AdamOptions(0.05));
      const auto loss = [&](int window, int micro) {
        return sharded.forward(batch_of(world.rank(), 10 * window + micro)).square().mean() / 3;
      };
      const auto batches = [&] {
        for (int window = 0; window < windows[world.rank()]; ++window) {
          {
            const auto no_sync = sharded.no_sync();
            const at::Tensor first = loss(window, 0), second = loss(window, 1);
            sharded.backward(first);
            sharded.backward(second);
          }
          sharded.backward(loss(window, 2));
          optimizer.step();
          sharded.zero_grad();
        }
      };
      join({&sharded}, batches, {.after_backward = [&] { optimizer.step(); }});
      EXPECT_LT(distance(weights_of(*net), sharded.state()), 1e-12) << "rank " << world.rank();
    });
  }
}

TEST(Join, TakesBuffersFromLastActiveRank) {
  for (const ShardLevel level : levels) {
    SCOPED_TRACE(std::string(to_string(level)));
    torch::nn::BatchNorm1d alone(torch::nn::BatchNormOptions(width).momentum(0.3));
    alone->to(at::kDouble);
    for (std::uint64_t step = 0; step < 3; ++step) alone->forward(rows(4, 100 + step));
    spawn(3, [&](World& world) {
      nn::Layers net;
      torch::nn::BatchNorm1d norm(torch::nn::BatchNormOptions(width).momentum(0.3));
      norm->to(at::kDouble);
      net.add("norm", norm);
      Sharded sharded(net, DeviceMesh(world, {{"shard", 3}}), {.level = level});
      const int batches = world.rank() == 1 ? 3 : world.rank() == 0 ? 1 : 0;
      join({&sharded}, [&] {
        for (int step = 0; step < batches; ++step)
          sharded.backward(
              sharded.forward(rows(4, static_cast<std::uint64_t>(100 * world.rank() + step)))
                  .square()
                  .mean());
      });
      EXPECT_TRUE(at::allclose(norm->running_mean, alone->running_mean, 1e-14, 1e-14));
      EXPECT_TRUE(at::allclose(norm->running_var, alone->running_var, 1e-14, 1e-14));
      EXPECT_EQ(norm->num_batches_tracked.item<int>(), 3);
    });
  }
}

TEST(Join, TrainsTwoModelsInTurns) {
  const auto first = make<TwoLinears>(), second = make<TwoLinears>();
  torch::optim::SGD a(first->parameters(), 0.1), b(second->parameters(), 0.2);
  for (int step = 0; step < 3; ++step) {
    for (const auto& [net, optimizer] : {std::pair(first, &a), std::pair(second, &b)}) {
      optimizer->zero_grad();
      at::Tensor loss = net->forward(batch_of(1, step)).square().mean();
      if (step < 1) loss = loss + net->forward(batch_of(0, step)).square().mean();
      (loss / 2).backward();
      optimizer->step();
    }
  }
  spawn(2, [&](World& world) {
    const nn::Layers one = in_layers(), two = in_layers();
    const DeviceMesh mesh(world, {{"shard", 2}});
    Sharded sharded_one(one, mesh, {.level = ShardLevel::Parameters});
    Sharded sharded_two(two, mesh, {.level = ShardLevel::Gradients});
    torch::optim::SGD x(sharded_one.parameters(), 0.1), y(sharded_two.parameters(), 0.2);
    int backwards = 0;
    const auto batches = [&] {
      for (int step = 0; step < (world.rank() == 0 ? 1 : 3); ++step) {
        for (const auto& [sharded, optimizer] :
             {std::pair(&sharded_one, &x), std::pair(&sharded_two, &y)}) {
          optimizer->zero_grad();
          sharded->backward(sharded->forward(batch_of(world.rank(), step)).square().mean());
          optimizer->step();
        }
      }
    };
    join({&sharded_one, &sharded_two}, batches,
         {.after_backward = [&] { ++backwards % 2 == 1 ? x.step() : y.step(); }});
    EXPECT_EQ(backwards, world.rank() == 0 ? 4 : 0);
    EXPECT_LT(distance(weights_of(*first), sharded_one.state()), 1e-12);
    EXPECT_LT(distance(weights_of(*second), sharded_two.state()), 1e-12);
  });
}

struct UnitsInside : Model {
  using Unit = Hooked<torch::nn::LinearImpl>;
  UnitsInside() {
    a = register_module("a", std::make_shared<Unit>(width, 7));
    b = register_module("b", std::make_shared<Unit>(7, width));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) override {
    return b->forward(torch::tanh(a->forward(x)));
  }
  std::shared_ptr<Unit> a, b;
};

// The order of hooked units is known only after the first step.
TEST(Join, RefusesHookedUnitsWithoutBatchInFirstStep) {
  const Uneven given{{1, 3}};
  const auto train = [&](int batches_of_0) {
    spawn(2, [&](World& world) {
      ShardedModule<Model> sharded(make<UnitsInside>(), DeviceMesh(world, {{"shard", 2}}),
                                   {.level = ShardLevel::Parameters});
      AdamW optimizer(sharded.parameters(), AdamWOptions(0.05));
      const auto step_with = [&] {
        sharded.clip_grad_norm(0.5);
        optimizer.step();
      };
      const auto batches = [&] {
        for (int step = 0; step < (world.rank() == 0 ? batches_of_0 : 3); ++step) {
          optimizer.zero_grad();
          sharded.backward(sharded.forward(batch_of(world.rank(), step)).square().mean());
          step_with();
        }
      };
      join({&sharded}, batches, {.after_backward = step_with});
      EXPECT_LT(distance(plainly(given, Average::AllRanks), sharded.state()), 1e-12);
    });
  };
  train(1);
  try {
    train(0);
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("this rank has no samples in the first step"));
  }
}

// The errors that join() throws on each rank; rank r has r batches.
std::vector<std::string> errors_of(
    int ranks, ShardLevel level,
    const std::function<void(World&, Sharded&, int step)>& before_forward,
    const JoinOptions& options = {}, const std::function<void(World&)>& afterwards = {}) {
  std::vector<std::string> told(static_cast<std::size_t>(ranks), "no error");
  std::atomic<int> ended = 0;
  spawn(ranks,
        [&](World& world) {
          const nn::Layers net = in_layers();
          Sharded sharded(net, DeviceMesh(world, {{"shard", ranks}}), {.level = level});
          try {
            join(
                {&sharded},
                [&] {
                  for (int step = 0; step < world.rank(); ++step) {
                    before_forward(world, sharded, step);
                    sharded.backward(sharded.forward(batch_of(world.rank(), step)).square().mean());
                    sharded.zero_grad();
                  }
                },
                options);
          } catch (const std::exception& error) {
            told[static_cast<std::size_t>(world.rank())] = error.what();
          }
          if (afterwards) afterwards(world);
          // until all ranks have their error
          for (++ended; ended < ranks;) std::this_thread::yield();
        },
        {.deadline = std::chrono::seconds(20)});
  return told;
}

TEST(Join, FailureOfOneRankStopsAllRanks) {
  for (const ShardLevel level : levels) {
    SCOPED_TRACE(std::string(to_string(level)));
    const auto in_batches = errors_of(3, level, [](World& world, Sharded&, int step) {
      if (world.rank() == 2 && step == 1) throw std::runtime_error("boom");
    });
    for (const std::string& told : in_batches) EXPECT_THAT(told, HasSubstr("boom"));
    const auto in_callback =
        errors_of(3, level, [](World&, Sharded&, int) {},
                  {.after_backward = [] { throw std::runtime_error("bang"); }});
    for (const std::string& told : in_callback) EXPECT_THAT(told, HasSubstr("bang"));
  }
}

TEST(Join, ThrowsOnAllRanksWhenFirstRankEnds) {
  const auto told = errors_of(
      3, ShardLevel::Gradients, [](World&, Sharded&, int) {},
      {.first_end = JoinOptions::FirstEnd::Throw},
      [](World& world) {
        at::Tensor one = at::ones({1});
        world.group().all_reduce(one).wait();  // The ranks can still communicate.
        EXPECT_EQ(one.item<int>(), 3);
      });
  for (const std::string& message : told)
    EXPECT_THAT(message, HasSubstr("rank 0 has no batches left, and rank 1 begins a forward"));
}

TEST(Join, NamesRanksWhoseCallsDiffer) {
  const auto told = errors_of(3, ShardLevel::Parameters, [](World& world, Sharded& sharded, int) {
    const at::NoGradGuard no_grad;
    if (world.rank() == 2) sharded.forward(rows(1, 1));
  });
  for (const std::string& message : told)
    EXPECT_THAT(message,
                HasSubstr("rank 1 begins a forward, rank 2 begins a forward without gradients"));
}

TEST(Join, RefusesCallsThatNeedShadowingRanks) {
  const auto told =
      errors_of(2, ShardLevel::Parameters, [](World&, Sharded& sharded, int) { sharded.state(); });
  EXPECT_THAT(told[1], HasSubstr("state() inside join()"));
  const auto nested = errors_of(2, ShardLevel::None,
                                [](World&, Sharded& sharded, int) { join({&sharded}, [] {}); });
  EXPECT_THAT(nested[1], HasSubstr("join() inside join()"));
  const auto in_no_sync = errors_of(2, ShardLevel::None, [](World&, Sharded& sharded, int) {
    const auto no_sync = sharded.no_sync();
    sharded.backward(sharded.forward(rows(1, 1)).square().mean());
    throw std::runtime_error("left");
  });
  EXPECT_THAT(in_no_sync[1], HasSubstr("left"));
}

TEST(Join, RefusesSyncBatchNormAndEndInsideNoSync) {
  for (const bool converted : {false, true}) {
    spawn(2, [&](World& world) {
      nn::Layers net;
      if (converted)
        net.add("norm", torch::nn::BatchNorm1d(width));
      else
        net.add("norm", SyncBatchNorm(torch::nn::BatchNormOptions(width), world.group()));
      if (converted) convert_sync_batch_norm(net, world.group());
      Sharded sharded(net, DeviceMesh(world, {{"shard", 2}}), {});
      try {
        join({&sharded}, [] {});
        ADD_FAILURE() << "no error";
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), HasSubstr("SyncBatchNorm"));
      }
    });
  }
  spawn(2, [&](World& world) {
    Sharded cut(in_layers(), DeviceMesh(world, {{"shard", 2}}),
                {.reproducible = {.micro_batches = 2}});
    EXPECT_THROW(join({&cut}, [] {}), UsageError);
  });
  std::string message;
  try {
    spawn(2, [&](World& world) {
      const nn::Layers net = in_layers();
      Sharded sharded(net, DeviceMesh(world, {{"shard", 2}}), {});
      join({&sharded}, [&] {
        const auto no_sync = sharded.no_sync();
        sharded.backward(sharded.forward(rows(1, 1)).square().mean());
      });
    });
  } catch (const StateError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("ended inside no_sync()"));
}

}  // namespace
}  // namespace trestle
