// Calls in an unusual order: each gives the plain model's numbers or an error.
#include <cmath>

#include "attack_ranks.h"
#include "tests/sharding/scratch_folder.h"
#include "trestle/base/text.h"
#include "trestle/nn/layers.h"
#include "trestle/sharding/save/save.h"
#include "trestle/sync_batch_norm/sync_batch_norm.h"

namespace trestle {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using torch::nn::Linear;

constexpr int layers = 7;

// Each layer is a unit and a bucket: more buckets than are reduced at once. The model also returns
// the third layer's output.
nn::Layers deep_net() {
  nn::Layers net(nn::Seed{4});
  for (int i = 0; i < layers; ++i) {
    auto added = net.add("layer" + std::to_string(i), [] {
      Linear layer(width, width);
      layer->to(at::kDouble);
      return layer;
    });
    if (i == 2) added.keep_output("early");
  }
  net.also_return("early");
  return net;
}

enum class Lacks { Samples, LateLayers };

at::Tensor deep_loss(const nn::Values& outputs, bool early) {
  return (early ? outputs[1] : outputs[0]).sin().mean();
}

Weights deep_weights_plainly(int ranks, Lacks lacks) {
  const nn::Layers net = deep_net();
  torch::optim::SGD optimizer(net.parameters(), 0.5);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const bool all = step == 0, samples = lacks == Lacks::Samples;
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == 1 && !all && samples) continue;
      const bool early = rank == 1 && !all;
      const double share = 1.0 / (samples && !all ? ranks - 1 : ranks);
      const at::Tensor x = rows(2 * ranks, 100 + static_cast<std::uint64_t>(step));
      (deep_loss(net.forward(nn::Values{x.narrow(0, 2 * rank, 2)}), early) * share).backward();
    }
    optimizer.step();
  }
  Weights weights;
  for (const auto& [name, tensor] : net.named_parameters()) weights[name] = tensor.detach();
  return weights;
}

// From the second step on, rank 1 lacks samples or late layers.
void train_deep(World& world, const DeviceMesh& mesh, const ShardOptions& options, Lacks lacks) {
  const nn::Layers net = deep_net();
  Sharded sharded(net, mesh, options);
  torch::optim::SGD optimizer(sharded.parameters(), 0.5);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const bool differs = world.rank() == 1 && step > 0, samples = lacks == Lacks::Samples;
    if (differs && samples) {
      sharded.backward_without_samples();
    } else {
      const at::Tensor loss =
          deep_loss(sharded.forward(nn::Values{own_rows(world, step)}), differs);
      sharded.backward(loss, samples ? std::optional<double>(2) : std::nullopt);
    }
    optimizer.step();
  }
  EXPECT_LT(distance(deep_weights_plainly(world.size(), lacks), sharded.state()), 1e-12)
      << to_string(options.level);
}

// The rank must not wait for ranks that wait for it.
TEST(ShardAttack, RankWithoutSamplesOrLateLayersDoesNotBlock) {
  for (const bool two_by_two : {false, true})
    for (const auto unused : {UnusedParameters::Refuse, UnusedParameters::Find})
      for (const ShardLevel level : levels) {
        SCOPED_TRACE(std::string(to_string(level)) + (two_by_two ? " 2x2" : " 2"));
        const ShardOptions options{
            .level = level, .unused_parameters = unused, .buckets = {.size = 0, .first = 0}};
        spawn(two_by_two ? 4 : 2,
              [&](World& world) {
                std::vector<mesh::Dimension> dimensions = {{"shard", 2}};
                if (two_by_two) dimensions.insert(dimensions.begin(), {"replicate", 2});
                const DeviceMesh mesh(world, dimensions);
                train_deep(world, mesh, options, Lacks::Samples);
                if (unused == UnusedParameters::Find)
                  train_deep(world, mesh, options, Lacks::LateLayers);
              },
              {.deadline = std::chrono::seconds(20)});
      }
}

// libtorch's optimizers do not bump versions. At levels whose parameters stay whole, only the
// rank's own shard is new.
TEST(ShardEdgeCases, BackwardAfterOptimizersStepIsExactOrRefused) {
  each_level(2, {}, [](World& world, const ShardOptions& options) {
    const auto net = make<Net>(), plain = make<Net>();
    ShardedModule<Model> sharded(net, shards(world), options);
    SGD optimizer(sharded.parameters(), 0.5), plainly(plain->parameters(), 0.5);
    const at::Tensor first = sharded.forward(own_rows(world)).square().mean();
    const at::Tensor second = sharded.forward(own_rows(world, 1)).square().mean();
    const at::Tensor plain_first = plain->forward(rows(4, 100)).square().mean();
    const at::Tensor plain_second = plain->forward(rows(4, 101)).square().mean();
    sharded.backward(first), plain_first.backward();
    optimizer.step(), plainly.step();
    optimizer.zero_grad(), plainly.zero_grad();
    if (options.level == ShardLevel::OptimizerState || options.level == ShardLevel::Gradients) {
      EXPECT_ANY_THROW(sharded.backward(second));
      return;
    }
    sharded.backward(second), plain_second.backward();
    EXPECT_NEAR(sharded.clip_grad_norm(1e9),
                torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9), 1e-12);
  });
}

// Between two evaluations, equal weights change by opposite amounts.
TEST(ShardAttack, DetectsStepInOppositeDirections) {
  struct Opposite : Model {
    Opposite() { weight = register_parameter("weight", at::full({2}, 0.75)); }
    at::Tensor forward(const at::Tensor& x) override { return weight * x; }
    at::Tensor weight;
  };
  each_level(2, {}, [](World& world, const ShardOptions& options) {
    ShardedModule<Model> sharded(make<Opposite>(), shards(world), options);
    SGD optimizer(sharded.parameters(), 0.125);
    const at::Tensor x = at::ones({2});
    const at::Tensor up_and_down = at::tensor({0.5F, -0.5F});
    sharded.backward((sharded.forward(x) * up_and_down).sum());
    const at::NoGradGuard no_grad;
    sharded.forward(x);
    optimizer.step();
    EXPECT_TRUE(sharded.forward(x).equal(at::tensor({0.6875F, 0.8125F}))) << world.rank();
  });
}

TEST(ShardEdgeCases, RefusesDifferentKeptDtypesPerRank) {
  expect_error(
      2,
      [](World& world) {
        ShardOptions options{.level = ShardLevel::Gradients,
                             .precision = {.parameters = at::kBFloat16}};
        if (world.rank() == 1) options.precision.keep = {"b"};
        const Sharded sharded(make<Net>(), shards(world), options);
      },
      "precision.keep is nothing on rank 0 and b on rank 1");
}

TEST(ShardEdgeCases, StateLoadedInsideUnshardIsVisibleThere) {
  each_level(2, {}, [](World& world, const ShardOptions& options) {
    const auto net = make<Net>();
    ShardedModule<Model> sharded(net, shards(world), options);
    sharded.backward(sharded.forward(own_rows(world)).sum());
    NamedTensors other = sharded.state();
    for (auto& [name, tensor] : other) tensor.add_(1);
    const auto unsharded = sharded.unshard();
    sharded.load_state(other);
    for (const auto& [name, tensor] : other)
      EXPECT_TRUE(net->named_parameters()[name].equal(tensor)) << name;
  });
}

// At levels where the model keeps its own copies in another dtype.
TEST(ShardEdgeCases, RefusesWritesToCopiesAfterOptimizersStep) {
  for (const ShardLevel level : {ShardLevel::OptimizerState, ShardLevel::Gradients})
    expect_error(
        2,
        [&](World& world) {
          const auto net = make<Net>();
          ShardedModule<Model> sharded(net, shards(world),
                                       {.level = level, .precision = {.parameters = at::kFloat}});
          SGD optimizer(sharded.parameters(), 0.5);
          sharded.backward(sharded.forward(own_rows(world)).sum());
          optimizer.step();
          for (at::Tensor& parameter : net->parameters()) {
            const at::NoGradGuard no_grad;
            parameter.zero_();
          }
          sharded.forward(own_rows(world));
        },
        "was written to after the optimizer's step");
}

TEST(ShardAttack, KeepsGradientsWhenNoRankHasSamples) {
  each_level(3, {}, [](World& world, const ShardOptions& options) {
    ShardedModule<Model> sharded(make<Net>(), shards(world), options);
    sharded.backward(sharded.forward(own_rows(world)).square().mean(), 2);
    const double norm = sharded.clip_grad_norm(1e9);
    EXPECT_GT(norm, 0.01);
    sharded.backward_without_samples();
    EXPECT_EQ(sharded.clip_grad_norm(1e9), norm);
    sharded.backward(sharded.forward(own_rows(world).narrow(0, 0, 0)).sum(), 0);
    EXPECT_EQ(sharded.clip_grad_norm(1e9), norm);
    EXPECT_THROW(sharded.backward(sharded.forward(own_rows(world)).sum(), INFINITY), UsageError);
  });
}

struct Normed : Model {
  Normed() {
    a = register_module("a", torch::nn::Linear(width, 7));
    norm = register_module("norm", torch::nn::BatchNorm1d(7));
    b = register_module("b", torch::nn::Linear(7, width));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) override { return b(torch::tanh(norm(a(x)))); }
  torch::nn::Linear a{nullptr}, b{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

// A rank's loss has gradients on other ranks through the batch's statistics, with that rank's
// weight.
TEST(ShardAttack, AccumulatesRaggedBatchesWithSyncBatchNorm) {
  const auto plain = make<Normed>();
  for (const std::uint64_t step : {0, 1})
    plain->forward(rows(9, 100 + step)).square().sum(1).mean().backward();
  const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9);
  each_level(3, {}, [&](World& world, const ShardOptions& options) {
    const auto net = make<Normed>();
    convert_sync_batch_norm(net, world.group());
    ShardedModule<Model> sharded(net, shards(world), options);
    for (const std::uint64_t step : {0, 1}) {
      const std::int64_t count = 2 + world.rank(), before = 2 * world.rank() + world.rank() / 2;
      const at::Tensor x = rows(9, 100 + step).narrow(0, before, count);
      sharded.backward(sharded.forward(x).square().sum(1).mean(), static_cast<double>(count));
    }
    EXPECT_NEAR(sharded.clip_grad_norm(1e9), norm, 1e-12 * norm);
  });
}

// Buckets are rebuilt after the first step, while they may hold gradients that are not reduced yet.
TEST(ShardAttack, ReducesNoSyncGradientsAcrossBucketRebuild) {
  std::vector<double> norms;
  for (const bool warm : {false, true})
    norms.push_back(spawn(2, [&](World& world) {
      const auto net = make<Net>();
      net->to(at::kBFloat16);
      ShardedModule<Model> sharded(
          net, shards(world),
          {.precision = {.reduce = at::kFloat}, .unused_parameters = UnusedParameters::Refuse});
      const auto forward = [&](int step) {
        return sharded.forward(own_rows(world, step).to(at::kBFloat16)).sum();
      };
      if (warm) sharded.backward(forward(0)), sharded.zero_grad(), forward(0);
      const at::Tensor first = forward(1), second = forward(2);
      sharded.backward(first);
      sharded.zero_grad();
      {
        const auto no_sync = sharded.no_sync();
        sharded.backward(second);
      }
      sharded.backward(forward(3));
      return sharded.clip_grad_norm(1e9);
    })[0]);
  EXPECT_EQ(norms[0], norms[1]);
}

TEST(ShardEdgeCases, NanOnOneRankIsNormOnAllRanks) {
  for (const double p : {1.0, 2.0, double{INFINITY}})
    each_level(2, {}, [&](World& world, const ShardOptions& options) {
      ShardedModule<Model> sharded(make<Net>(), shards(world), options);
      sharded.backward(sharded.forward(own_rows(world)).sum());
      for (at::Tensor& parameter : sharded.parameters())
        if (parameter.numel() > 0 && (world.rank() == 1 || options.level == ShardLevel::None))
          parameter.mutable_grad().view(-1)[0] = NAN;
      EXPECT_TRUE(std::isnan(sharded.clip_grad_norm(1, {.p = p}))) << p;
      for (const at::Tensor& parameter : sharded.parameters())
        EXPECT_TRUE(parameter.grad().isnan().all().item<bool>());
    });
}

// Gradients of no_sync() that the optimizer's zero_grad() has cleared, and gradients from before a
// load.
TEST(SavedSharded, OmitsClearedGradients) {
  const ScratchFolder folder;
  each_level(2, {}, [&](World& world, const ShardOptions& options) {
    ShardedModule<Model> sharded(make<Net>(), shards(world), options);
    SGD optimizer(sharded.parameters(), 0.5);
    const auto backward = [&](int step) {
      sharded.backward(sharded.forward(own_rows(world, step)).square().mean());
      return sharded.clip_grad_norm(1e9);
    };
    backward(0);
    optimizer.zero_grad();
    {
      const auto no_sync = sharded.no_sync();
      sharded.backward(sharded.forward(own_rows(world)).sum());
      EXPECT_THROW(save(folder.path("early"), sharded, optimizer), StateError);
    }
    optimizer.zero_grad();
    const auto last = folder.path(std::string(to_string(options.level)));
    save(last, sharded, optimizer);
    const double norm = backward(1);
    load(last, sharded, optimizer);
    EXPECT_EQ(backward(1), norm);
  });
}

// Level None rebuilds its buckets before the second step. A parameter frozen then is still reduced
// once it is unfrozen.
TEST(ShardAttack, ReducesParametersFrozenInFirstSteps) {
  const auto train = [](TwoLinears& net, int frozen, int from, torch::optim::Optimizer& optimizer,
                        const std::function<void(int)>& backward) {
    const std::vector<at::Tensor> parameters = net.parameters();
    for (int step = 0; step < 5; ++step) {
      if (step == from || step == 3)
        parameters[static_cast<std::size_t>(frozen)].requires_grad_(step == 3);
      optimizer.zero_grad();
      backward(step);
      optimizer.step();
    }
  };
  for (const int frozen : {0, 2, 3}) {
    for (const int from : {0, 1}) {
      SCOPED_TRACE(text("parameter ", frozen, " from step ", from));
      const auto plain = std::static_pointer_cast<TwoLinears>(make<TwoLinears>());
      torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
      train(*plain, frozen, from, plain_optimizer, [&](int step) {
        plain->forward(rows(4, 100 + static_cast<std::uint64_t>(step))).square().mean().backward();
      });
      Weights expected;
      for (const auto& item : plain->named_parameters())
        expected[item.key()] = item.value().detach();
      for (const Bytes bucket : {Bytes{1}, Bytes{1} << 20})
        each_level(2, {.buckets = {.size = bucket, .first = bucket}},
                   [&](World& world, const ShardOptions& options) {
                     const auto net = std::static_pointer_cast<TwoLinears>(make<TwoLinears>());
                     ShardedModule<Model> model(net, shards(world), options);
                     torch::optim::SGD optimizer(model.parameters(), 0.1);
                     train(*net, frozen, from, optimizer, [&](int step) {
                       model.backward(model.forward(own_rows(world, step)).square().mean());
                     });
                     EXPECT_LT(distance(expected, model.state()), 1e-12)
                         << to_string(options.level) << ", rank " << world.rank();
                   });
    }
  }
}

}  // namespace
}  // namespace trestle
