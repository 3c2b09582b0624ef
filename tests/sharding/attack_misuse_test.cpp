// Changes to a model from outside: each gives the plain model's numbers or an error with the
// reason.
#include "attack_ranks.h"
#include "trestle/base/error.h"
#include "trestle/sharding/join.h"

namespace trestle {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

TEST(ShardEdgeCases, FreezesParametersBetweenSteps) {
  const auto freeze = [](torch::nn::Module& net, bool frozen) {
    for (const auto& item : net.named_parameters())
      if (item.key().starts_with("a.")) item.value().set_requires_grad(!frozen);
  };
  const auto plain = make<Net>();
  torch::optim::Adam plain_optimizer(plain->parameters(), 0.05);
  for (int step = 0; step < 6; ++step) {
    freeze(*plain, step / 2 == 1);
    plain_optimizer.zero_grad();
    plain->forward(rows(4, 100 + static_cast<std::uint64_t>(step))).square().mean().backward();
    plain_optimizer.step();
  }
  const Weights expected = weights_of(*plain);
  each_level(2, {.buckets = {.size = 256, .first = 128}},
             [&](World& world, const ShardOptions& options) {
               const auto net = make<Net>();
               ShardedModule<Model> sharded(net, shards(world), options);
               torch::optim::Adam optimizer(sharded.parameters(), 0.05);
               for (int step = 0; step < 6; ++step) {
                 freeze(*net, step / 2 == 1);
                 optimizer.zero_grad();
                 sharded.backward(sharded.forward(own_rows(world, step)).square().mean());
                 optimizer.step();
               }
               EXPECT_EQ(sharded.parameters().size(), 4U);
               EXPECT_LT(distance(expected, sharded.state()), 1e-12);
             });
  for (const ShardLevel level : levels)
    expect_error(
        2,
        [&](World& world) {
          const auto net = make<Net>();
          ShardedModule<Model> sharded(net, shards(world), {.level = level});
          freeze(*net, world.rank() == 1);
          sharded.backward(sharded.forward(own_rows(world)).square().mean());
        },
        "trains other parameters than this rank");
}

// Each would wait for the other in the device's backward thread, until the deadline.
TEST(ShardEdgeCases, RefusesThreadRanksOnOneDevice) {
  const at::Device device = virtual_devices(1)[0].torch;
  const std::string reason = "ranks 0 and 1 that share each batch both use virtual:0";
  for (const ShardLevel level : levels) {
    expect_error(
        2,
        [&](World& world) {
          ShardedModule<Model> sharded(make<Net>(), shards(world),
                                       {.level = level, .device = device});
        },
        reason);
    expect_error(
        2,
        [&](World& world) {
          nn::Layers net(nn::Seed{1});
          net.add("linear", [] { return torch::nn::Linear(4, 4); });
          Sharded(net, shards(world), {.level = level, .device = device});
        },
        reason);
  }
}

TEST(ShardEdgeCases, RefusesParametersUnfrozenAfterConstruction) {
  each_level(2, {}, [](World& world, const ShardOptions& options) {
    const auto net = make<Net>();
    const at::Tensor frozen = net->parameters()[0];
    frozen.set_requires_grad(false);
    ShardedModule<Model> sharded(net, shards(world), options);
    frozen.set_requires_grad(true);
    EXPECT_EQ(sharded.named_parameters().size(), 3U);
    try {
      sharded.forward(own_rows(world));
      ADD_FAILURE() << "no error";
    } catch (const StateError& error) {
      EXPECT_THAT(error.what(), HasSubstr("parameter 'a.weight' was frozen when"));
    }
  });
}

TEST(ShardEdgeCases, RefusesModelMovedOrCastAfterConstruction) {
  each_level(2, {}, [](World& world, const ShardOptions& options) {
    for (const bool data : {true, false}) {
      // level None stores no parameters elsewhere
      if (options.level == ShardLevel::None && data) continue;
      const auto net = make<Net>();
      ShardedModule<Model> sharded(net, shards(world), options);
      {
        const auto whole = sharded.unshard();
        if (data)
          net->parameters()[0].set_data(at::zeros({7, width}, at::kDouble));
        else
          net->to(at::kFloat);
      }
      EXPECT_THROW(sharded.forward(own_rows(world)), StateError);
    }
  });
}

TEST(ShardEdgeCases, RefusesSecondShardedWhileFirstIsAlive) {
  each_level(2, {}, [](World& world, const ShardOptions& options) {
    const auto net = make<Net>();
    const DeviceMesh mesh = shards(world);
    const Weights before = [&] {
      Weights weights;
      for (const auto& item : net->named_parameters()) weights[item.key()] = item.value().clone();
      return weights;
    }();
    {
      ShardedModule<Model> first(net, mesh, options);
      EXPECT_THROW(ShardedModule<Model>(net, mesh, options), UsageError);
      EXPECT_LT(distance(before, first.state()), 1e-15);
      first.backward(first.forward(own_rows(world)).sum());
    }
    if (options.level == ShardLevel::Parameters) {
      EXPECT_THROW(ShardedModule<Model>(net, mesh, options), UsageError);
    }
  });
}

// A Sharded destroyed while it is unsharded leaves a plain model, which a new Sharded takes over.
TEST(ShardEdgeCases, RecreatesShardedOverSameModel) {
  const Weights expected = plainly({.model = make<Net>, .steps = 4, .optimizer = [](auto p) {
                                      return std::make_shared<SGD>(p, 0.1);
                                    }});
  for (const ShardLevel second : levels)
    each_level(2, {}, [&](World& world, ShardOptions options) {
      const auto net = make<Net>();
      const DeviceMesh mesh = shards(world);
      for (int half = 0; half < 2; ++half) {
        std::optional<Sharded::Unsharded> whole;
        ShardedModule<Model> sharded(net, mesh, options);
        SGD optimizer(sharded.parameters(), 0.1);
        for (int step = 2 * half; step < 2 * half + 2; ++step) {
          optimizer.zero_grad();
          sharded.backward(sharded.forward(own_rows(world, step)).square().mean());
          optimizer.step();
        }
        if (half == 0) whole.emplace(sharded.unshard());
        if (half == 1) {
          EXPECT_LT(distance(expected, sharded.state()), 1e-12);
        }
        options.level = second;
        if (half == 0) {
          auto gone = std::make_shared<ShardedModule<Model>>(std::move(sharded));
          gone.reset();  // before `whole`
        }
      }
    });
}

// The model's own storage does not hold the last step's weights, so using it must throw.
TEST(ShardEdgeCases, ModelThrowsAfterItsShardedIsDestroyedUnlessWhole) {
  each_level(2, {}, [](World& world, const ShardOptions& options) {
    const auto net = make<Net>();
    std::vector<at::Tensor> kept;
    {
      ShardedModule<Model> sharded(net, shards(world), options);
      SGD optimizer(kept = sharded.parameters(), 0.1);
      sharded.backward(sharded.forward(own_rows(world)).sum());
      optimizer.step();
    }
    for (const at::Tensor& shard : kept) EXPECT_TRUE(shard.isfinite().all().item<bool>());
    if (options.level == ShardLevel::None) {
      EXPECT_NO_THROW(net->forward(own_rows(world)));
    } else {
      EXPECT_ANY_THROW(net->forward(own_rows(world)));
    }
  });
}

TEST(ShardEdgeCases, KeepsWritesMadeInsideUnshard) {
  for (const auto parameters : {std::optional<at::ScalarType>(), {at::kFloat}})
    each_level(2, {}, [&](World& world, ShardOptions options) {
      if (options.level != ShardLevel::None) options.precision.parameters = parameters;
      const auto net = make<Net>();
      const Weights before = [&] {
        Weights weights;
        for (const auto& item : net->named_parameters())
          weights[item.key()] = item.value().detach().clone();
        return weights;
      }();
      ShardedModule<Model> sharded(net, shards(world), options);
      {
        const auto whole = sharded.unshard();
        const at::NoGradGuard no_grad;
        net->named_parameters()["a.weight"].select(0, 0).fill_(0.5);
        net->named_parameters()["b.bias"].fill_(0.25);
        EXPECT_NO_THROW(sharded.forward(own_rows(world)));
      }
      sharded.forward(own_rows(world));
      Weights expected = before;
      expected["a.weight"].select(0, 0).fill_(0.5);
      expected["b.bias"].fill_(0.25);
      // rows that were not written keep full precision
      EXPECT_EQ(distance(expected, sharded.state()), 0);
    });
}

TEST(ShardEdgeCases, NestedUnshardsShowLastStepsWeights) {
  each_level(2, {}, [](World& world, const ShardOptions& options) {
    const auto net = make<Net>();
    auto sharded = std::make_unique<ShardedModule<Model>>(net, shards(world), options);
    SGD optimizer(sharded->parameters(), 0.1);
    const auto outer = sharded->unshard();
    { const auto inner = sharded->unshard(); }
    EXPECT_NO_THROW(net->parameters()[0].sum());
    sharded->backward(sharded->forward(own_rows(world)).sum());
    optimizer.step();
    sharded->forward(own_rows(world));
    const NamedTensors state = sharded->state();
    for (const auto& [name, tensor] : state)
      EXPECT_TRUE(net->named_parameters()[name].equal(tensor)) << name;
    const auto no_sync = sharded->no_sync();
    sharded.reset();  // before the guards that it returned
    EXPECT_NO_THROW(net->parameters()[0].sum());
  });
}

TEST(ShardEdgeCases, RefusesGradientsThatCannotBeReduced) {
  each_level(2, {}, [](World& world, const ShardOptions& options) {
    const auto net = make<Net>();
    ShardedModule<Model> sharded(net, shards(world), options);
    const at::Tensor loss = sharded.forward(own_rows(world)).sum();
    EXPECT_THROW(torch::autograd::grad({loss}, {net->parameters()[0]}, {}, true), StateError);
    {
      const auto no_sync = sharded.no_sync();
      EXPECT_TRUE(torch::autograd::grad({loss}, {net->parameters()[0]}, {}, true)[0].defined());
    }
    sharded.backward(loss);
    EXPECT_EQ(sharded.report().steps, 1);
    EXPECT_THROW(sharded.forward(own_rows(world))
                     .square()
                     .sum()
                     .backward({}, std::nullopt, /*create_graph=*/true),
                 UsageError);
  });
}

struct Raw : Model {
  explicit Raw(const std::function<void(Raw&)>& fill) { fill(*this); }
  at::Tensor forward(const at::Tensor& x) override { return x; }
};

TEST(ShardEdgeCases, RefusesModelsThatCannotBeSharded) {
  using Fill = std::function<void(Raw&)>;
  const std::vector<std::pair<Fill, std::string>> fills = {
      {[](Raw& raw) {
         raw.register_parameter("w", at::randn({1, 3}).expand({4, 3}).detach());
       },
       "parameter 'w' overlaps itself"},
      {[](Raw& raw) {
         const at::Tensor w = at::randn({4});
         raw.register_parameter("w", w);
         raw.register_parameter("v", w.detach().narrow(0, 1, 2));
       },
       "parameter 'w' shares its memory with 'v'"},
      {[](Raw& raw) {
         const at::Tensor w = at::randn({4});
         raw.register_parameter("w", w);
         raw.register_buffer("view", w.detach());
       },
       "parameter 'w' shares its memory with 'view'"},
      {[](Raw& raw) {
         raw.register_parameter("w", at::randn({4}));
         raw.register_buffer("holes", at::eye(3).to_sparse());
       },
       "'holes' is a sparse tensor"}};
  for (const auto& [fill, words] : fills)
    for (const ShardLevel level : {ShardLevel::Gradients, ShardLevel::Parameters})
      expect_error(
          2,
          [&, fill = fill](World& world) {
            const Sharded sharded(std::make_shared<Raw>(fill), shards(world), {.level = level});
          },
          words);
  spawn(1, [](World& world) {
    for (const at::ScalarType type : {at::kLong, at::kComplexFloat})
      EXPECT_THROW(Sharded(make<Net>(), shards(world),
                           {.level = ShardLevel::Gradients, .precision = {.reduce = type}}),
                   UsageError);
  });
}

TEST(ShardEdgeCases, RefusesOutputsWithoutTensorsAtLevelParameters) {
  spawn(1, [](World& world) {
    struct Own {
      at::Tensor y;
    };
    const auto net = make<Net>();
    Sharded sharded(net, shards(world), {.level = ShardLevel::Parameters});
    EXPECT_THROW(
        sharded.run([&](const at::Tensor& x) { return Own{net->forward(x)}; }, own_rows(world)),
        UsageError);
  });
}

// Other ranks begin a training forward, the backward of one, or state().
TEST(ShardEdgeCases, RankThatEvaluatesAloneIsToldAtOnce) {
  using Module = ShardedModule<Model>;
  const std::map<std::string, std::function<void(Module&, const at::Tensor&)>> calls = {
      {"a training forward", [](Module& model, const at::Tensor&) { model.forward(rows(2, 1)); }},
      {"a backward", [](Module& model, const at::Tensor& loss) { model.backward(loss); }},
      {"state()", [](Module& model, const at::Tensor&) { model.state(); }}};
  for (const ShardLevel level : sharded_levels) {
    for (const auto& [name, call] : calls) {
      std::array<std::string, 2> told;
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_THROW(spawn(2,
                         [&](World& world) {
                           ShardedModule<Model> model(make<Net>(), shards(world), {.level = level});
                           const auto forward = [&] {
                             return model.forward(rows(2, 1)).square().mean();
                           };
                           model.backward(forward());  // buckets and orders of units are known
                           const at::Tensor loss = forward();
                           try {
                             if (world.rank() == 1) return call(model, loss);
                             const at::NoGradGuard no_grad;
                             forward();
                           } catch (const std::exception& error) {
                             told[static_cast<std::size_t>(world.rank())] = error.what();
                             throw;
                           }
                         },
                         {.deadline = std::chrono::seconds(60)}),
                   std::exception);
      for (const std::string& message : told) {
        EXPECT_THAT(message, AllOf(HasSubstr("an evaluation"), HasSubstr(name)))
            << to_string(level);
      }
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    }
  }
}

TEST(ShardEdgeCases, RefusesUseAfterMove) {
  spawn(2, [](World& world) {
    ShardedModule<Model> module(make<Net>(), shards(world), {.level = ShardLevel::Gradients});
    const ShardedModule<Model> other = std::move(module);
    EXPECT_THROW(module->parameters(), StateError);  // NOLINT(bugprone-use-after-move)
  });
  spawn(2, [](World& world) {
    Sharded first(make<Net>(), shards(world), {.level = ShardLevel::Gradients});
    Sharded second = std::move(first);
    // NOLINTBEGIN(bugprone-use-after-move)
    EXPECT_THROW(first.parameters(), StateError);
    EXPECT_THROW(first.no_sync(), StateError);
    EXPECT_THROW(first.unshard(), StateError);
    EXPECT_THROW(join({&first}, [] {}), StateError);
    first = std::move(second);
    EXPECT_THROW(second.report(), StateError);
    // NOLINTEND(bugprone-use-after-move)
    EXPECT_FALSE(first.parameters().empty());
  });
}

TEST(ShardEdgeCases, RefusesStatesWithUndefinedOrComplexTensors) {
  each_level(2, {}, [](World& world, const ShardOptions& options) {
    ShardedModule<Model> sharded(make<Net>(), shards(world), options);
    NamedTensors state = sharded.state();
    state[0].second = at::Tensor();
    EXPECT_THROW(sharded.load_state(state), UsageError);
    state[0].second = at::zeros({7, width}, at::kComplexDouble);
    EXPECT_THROW(sharded.load_state(state), UsageError);
  });
}

}  // namespace
}  // namespace trestle
