// Ranks that fail or differ: correct numbers, or an error with the reason on all ranks.
#include <atomic>
#include <thread>

#include "attack_ranks.h"
#include "tests/support/device_of_rank.h"
#include "trestle/device/virtual_device.h"
#include "trestle/nn/layers.h"

namespace trestle {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using torch::nn::Linear;

TEST(ShardEdgeCases, NamesOptionsThatDifferBetweenRanks) {
  using Change = std::function<void(ShardOptions&)>;
  const std::vector<std::pair<Change, std::string>> changes = {
      {[](auto& o) { o.level = ShardLevel::None; },
       "level is parameters on rank 0 and none on rank 1"},
      {[](auto& o) { o.buckets.size = 5; }, "ShardOptions::buckets.size"},
      {[](auto& o) { o.unused_parameters = UnusedParameters::Find; },
       "unused_parameters is Refuse on rank 0 and Find on rank 1"},
      {[](auto& o) { o.reshard_after_forward = false; },
       "reshard_after_forward is true on rank 0 and false"},
      {[](auto& o) { o.units.bytes = 4; },
       "ShardOptions::units.bytes is 0 on rank 0 and 4 on rank 1"},
      {[](auto& o) { o.precision.reduce = at::kBFloat16; },
       "precision.reduce is not set on rank 0 and BFloat16 on rank 1"},
      {[](auto& o) { o.broadcast.buffers = false; }, "ShardOptions::broadcast.buffers"},
      {[](auto& o) { o.shards_on_cpu = true; }, "ShardOptions::shards_on_cpu"},
      {[](auto& o) { o.seed = 8; }, "ShardOptions::seed is 0 on rank 0 and 8 on rank 1"}};
  for (const auto& [change, words] : changes)
    expect_error(
        2,
        [&change = change](World& world) {
          ShardOptions options{.level = ShardLevel::Parameters};
          if (world.rank() == 1) change(options);
          const Sharded sharded(make<Net>(), shards(world), options);
        },
        words);
}

// One rank throws and exits, or catches its error and waits. The other ranks end with the reason.
TEST(ShardEdgeCases, FailureOfOneRankStopsAllRanks) {
  for (const std::string place : {"forward", "between", "hook", "hook, caught"})
    for (const ShardLevel level : levels) {
      SCOPED_TRACE(place);
      std::atomic<int> ended = 0;
      expect_error(
          3,
          [&](World& world) {
            auto net = std::static_pointer_cast<Net>(make<Net>());
            ShardedModule<Model> sharded(net, shards(world), {.level = level});
            sharded.backward(sharded.forward(own_rows(world)).sum());
            const bool fails = world.rank() == 1;
            try {
              if (fails && place == "forward") net->failures = 1;
              const at::Tensor y = sharded.forward(own_rows(world));
              if (fails && place == "between") throw std::runtime_error("boom");
              if (fails && place.starts_with("hook"))
                net->b->weight.register_hook(
                    [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("boom"); });
              y.sum().backward();
            } catch (const std::exception&) {
              if (place != "hook, caught" || !fails) {
                ++ended;
                throw;
              }
            }
            for (int i = 0; i < 200 && ended < 2; ++i)
              std::this_thread::sleep_for(std::chrono::milliseconds(10));
            EXPECT_EQ(ended, 2);
          },
          place == "hook, caught" ? "did not finish" : "boom");
    }
}

// The backward runs in a device's own thread, which ends later than the call that waits for it.
TEST(ShardEdgeCases, FailureInDeviceThreadStopsAllRanks) {
  install_virtual_devices({.count = 3});
  for (const ShardLevel level : levels) {
    std::atomic<int> ended = 0;
    expect_error(
        3,
        [&](World& world) {
          const at::Device device = testing::device_of_rank(world.rank());
          ShardedModule<Model> sharded(make<Net>(), shards(world),
                                       {.level = level, .device = device});
          const at::Tensor y = sharded.forward(own_rows(world).to(device));
          if (world.rank() == 1)
            sharded->parameters()[2].register_hook(
                [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("boom"); });
          try {
            y.sum().backward();
          } catch (const std::exception&) {
            ++ended;
            if (world.rank() != 1) throw;
          }
          for (int i = 0; i < 80 && ended < 3; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        },
        "did not finish");
  }
}

TEST(ShardEdgeCases, RetriesForwardThatThrewOnAllRanks) {
  const Weights expected = plainly({.model = make<Net>});
  for (const bool reshard : {true, false})
    each_level(2, {.reshard_after_forward = reshard},
               [&](World& world, const ShardOptions& options) {
                 auto net = std::static_pointer_cast<Net>(make<Net>());
                 ShardedModule<Model> sharded(net, shards(world), options);
                 torch::optim::AdamW optimizer(sharded.parameters(),
                                               torch::optim::AdamWOptions(0.05).weight_decay(0.1));
                 for (int step = 0; step < 3; ++step) {
                   net->failures = 1;
                   EXPECT_THROW(sharded.forward(own_rows(world, step)), std::runtime_error);
                   optimizer.zero_grad();
                   sharded.backward(sharded.forward(own_rows(world, step)).square().mean());
                   optimizer.step();
                 }
                 EXPECT_LT(distance(expected, sharded.state()), 1e-12);
               });
}

// Layers in several units: the first forward stops after the first unit.
TEST(ShardEdgeCases, TrainsLayersAfterTheirFirstForwardThrew) {
  each_level(2, {}, [](World& world, const ShardOptions& options) {
    const auto failures = std::make_shared<int>(1);
    nn::Layers net(nn::Seed{1});
    net.add("a", [] { return Linear(width, width); });
    net.add("act", [failures](at::Tensor x) {
      if ((*failures)-- > 0) throw std::runtime_error("boom");
      return torch::relu(x);
    });
    net.add("b", [] { return Linear(width, width); });
    Sharded sharded(net, shards(world), options);
    const at::Tensor x = own_rows(world).to(at::kFloat);
    EXPECT_ANY_THROW(sharded.forward(x));
    for (int step = 0; step < 3; ++step) sharded.backward(sharded.forward(x).sum());
    EXPECT_EQ(sharded.report().steps, 3);
  });
}

// A unit whose output is a view, to which the next layer writes in place.
TEST(ShardEdgeCases, TrainsInPlaceLayerOnViewFromUnit) {
  const auto make_layers = [] {
    nn::Layers net(nn::Seed{1});
    struct ViewImpl : torch::nn::Module {
      ViewImpl() { fc = register_module("fc", Linear(width, width)); }
      at::Tensor forward(const at::Tensor& x) { return fc(x).view({-1, 2, width / 2}); }
      Linear fc{nullptr};
    };
    net.add("in", [] { return Linear(width, width); });
    net.add("view", [] { return std::make_shared<ViewImpl>(); });
    net.add("act", [](at::Tensor x) { return x.relu_(); });
    net.add("flat", [](at::Tensor x) { return x.flatten(1); });
    net.add("out", [] { return Linear(width, 1); });
    return net;
  };
  nn::Layers plain = make_layers();
  plain.forward(rows(4, 100).to(at::kFloat)).square().mean().backward();
  const auto grads = [](const NamedTensors& named) {
    double sum = 0;
    for (const auto& [name, tensor] : named)
      if (tensor.grad().defined()) sum += tensor.grad().abs().sum().item<double>();
    return sum;
  };
  each_level(2, {}, [&](World& world, const ShardOptions& options) {
    Sharded sharded(make_layers(), shards(world), options);
    for (int step = 0; step < 2; ++step) {
      sharded.zero_grad();
      sharded.backward(sharded.forward(own_rows(world).to(at::kFloat)).square().mean());
      at::Tensor sum = at::full({1}, grads(sharded.named_parameters()), at::kDouble);
      if (options.level != ShardLevel::None) world.group().all_reduce(sum).wait();
      EXPECT_NEAR(sum.item<double>(), grads(plain.named_parameters()), 1e-5);
    }
  });
}

TEST(ShardEdgeCases, NoSyncLastsUntilLastGuardIsDestroyed) {
  each_level(2, {}, [](World& world, const ShardOptions& options) {
    ShardedModule<Model> sharded(make<Net>(), shards(world), options);
    std::optional<Sharded::NoSync> first(sharded.no_sync());
    std::optional<Sharded::NoSync> second(sharded.no_sync());
    const auto pass = [&] { sharded.backward(sharded.forward(own_rows(world)).sum()); };
    pass();
    first.reset();  // not in the order of creation
    pass();
    EXPECT_EQ(sharded.report().steps, 0);
    EXPECT_THROW(sharded.backward(sharded.forward(own_rows(world)).sum(), 3), UsageError);
    second.reset();
    pass();
    EXPECT_EQ(sharded.report().steps, 1);
    try {
      const auto third = sharded.no_sync();
      throw std::runtime_error("boom");
    } catch (const std::runtime_error&) {
    }
    pass();
    EXPECT_EQ(sharded.report().steps, 2);
  });
}

TEST(ShardEdgeCases, OptimizersZeroGradClearsGradientsLeftByNoSync) {
  each_level(2, {}, [](World& world, const ShardOptions& options) {
    ShardedModule<Model> sharded(make<Net>(), shards(world), options);
    SGD optimizer(sharded.parameters(), 0.1);
    const auto pass = [&] { sharded.backward(sharded.forward(own_rows(world)).sum()); };
    pass();
    std::vector<at::Tensor> expected;
    for (const at::Tensor& parameter : sharded.parameters())
      expected.push_back(parameter.grad().clone());
    optimizer.zero_grad();
    {
      const auto no_sync = sharded.no_sync();
      pass();
      pass();
      optimizer.zero_grad();
    }
    pass();
    std::size_t i = 0;
    for (const at::Tensor& parameter : sharded.parameters())
      EXPECT_TRUE(parameter.grad().allclose(expected[i++]));
  });
}

TEST(ShardEdgeCases, RefusesDifferentBackwardsPerRank) {
  for (const ShardLevel level : levels) {
    expect_error(
        2,
        [&](World& world) {
          ShardedModule<Model> sharded(make<Net>(), shards(world), {.level = level});
          for (int step = 0; step < 3; ++step) {
            std::optional<Sharded::NoSync> alone;
            if (step == 1 && world.rank() == 1) alone.emplace(sharded.no_sync());
            sharded.backward(sharded.forward(own_rows(world)).sum());
          }
        },
        "");
    expect_error(
        2,
        [&](World& world) {
          ShardedModule<Model> sharded(make<Net>(), shards(world), {.level = level});
          for (int step = 0; step < 2 + world.rank(); ++step)
            sharded.backward(sharded.forward(own_rows(world)).sum());
        },
        "");
  }
}

// Units that only one rank's backward uses.
TEST(ShardEdgeCases, ReducesLossesThatUseDifferentUnitsPerRank) {
  const auto make_layers = [] {
    nn::Layers net(nn::Seed{1});
    net.add("a", [] { return Linear(width, width); });
    net.add("b", [] { return Linear(width, width); }).keep_output("early");
    net.add("c", [] { return Linear(width, width); });
    net.add("d", [] { return Linear(width, width); });
    net.also_return("early");
    return net;
  };
  for (const int part : {0, 1, 2}) {
    const auto loss = [part](const nn::Values& y, int rank, int step) {
      if (rank == 0 || step == 0) return (y[0] + y[1]).square().mean();
      if (part == 0) return y[1].square().mean();
      if (part == 1) return y[0].detach().sum().set_requires_grad(true) * 2;
      return y[0].square().mean();
    };
    std::map<std::string, double> expected;
    nn::Layers plain = make_layers();
    for (int step = 0; step < 3; ++step) {
      plain.zero_grad();
      for (int rank = 0; rank < 2; ++rank)
        (loss(plain.forward(nn::Values{rows(4, 100).narrow(0, 2 * rank, 2).to(at::kFloat)}), rank,
              step) /
         2)
            .backward();
    }
    double sum = 0;
    for (const auto& [name, tensor] : plain.named_parameters())
      sum += tensor.grad().abs().sum().item<double>();
    each_level(
        2, {.unused_parameters = UnusedParameters::Find},
        [&](World& world, const ShardOptions& options) {
          Sharded sharded(make_layers(), shards(world), options);
          for (int step = 0; step < 3; ++step) {
            sharded.zero_grad();
            sharded.backward(loss(sharded.forward(nn::Values{own_rows(world).to(at::kFloat)}),
                                  world.rank(), step));
          }
          at::Tensor all = at::zeros({1}, at::kDouble);
          for (const auto& [name, tensor] : sharded.named_parameters())
            all += tensor.grad().abs().sum().item<double>();
          if (options.level != ShardLevel::None) world.group().all_reduce(all).wait();
          EXPECT_NEAR(all.item<double>(), sum, 1e-5) << part;
        });
  }
}

}  // namespace
}  // namespace trestle
