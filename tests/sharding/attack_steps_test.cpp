// Unusual steps: at every level they give the numbers of libtorch alone.
#include "attack.h"
#include "trestle/optim/factory.h"

namespace trestle {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

TEST(ShardAttack, AllowsForwardsBetweenBackwardAndStep) {
  for (const bool reshard : {true, false}) {
    Trial trial{.model = make<TwoLinears>};
    trial.options.reshard_after_forward = reshard;
    trial.after_backward = [](int step, const Call& call) {
      const at::Tensor x = rows(2, 9);
      if (step == 0) call(x);  // a training forward without its backward
      const at::NoGradGuard no_grad;
      call(x);
    };
    trial.after_step = [](int, const Call& call) {
      const c10::InferenceMode inference;
      call(rows(2, 10));
    };
    expect_same(trial);
  }
}

TEST(ShardAttack, EvaluatesWithNewWeightsAfterStep) {
  for (const ShardLevel level : levels) {
    Trial trial{.model = make<TwoLinears>};
    std::vector<double> expected;
    trial.after_backward = [&](int, const Call& call) { call(rows(2, 9)); };
    trial.after_step = [&](int, const Call& call) {
      expected.push_back(call(rows(2, 9)).sum().item<double>());
    };
    plainly(trial);
    spawn(2, [&](World& world) {
      Trial own = trial;
      std::size_t at = 0;
      own.after_step = [&](int, const Call& call) {
        EXPECT_NEAR(call(rows(2, 9)).sum().item<double>(), expected[at++], 1e-12);
      };
      sharded(own, world, level);
    });
  }
}

// WGAN-GP: the loss contains the input's gradient, computed with create_graph.
at::Tensor penalty_loss(const Call& call, const at::Tensor& given) {
  const at::Tensor x = given.clone().set_requires_grad(true);
  const at::Tensor y = call(x);
  const at::Tensor slope =
      torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  return y.square().mean() + slope.square().sum(1).mean();
}

TEST(ShardAttack, TrainsOnGradientPenalty) {
  Trial trial{.model = make<TwoLinears>, .loss = penalty_loss};
  // the input's gradient does not depend on b.bias
  trial.options.unused_parameters = UnusedParameters::Find;
  const Weights expected = plainly(trial);
  for (const ShardLevel level :
       {ShardLevel::None, ShardLevel::OptimizerState, ShardLevel::Gradients})
    spawn(2, [&](World& world) {
      const Weights weights = sharded(trial, world, level);
      EXPECT_LT(distance(expected, {weights.begin(), weights.end()}), 1e-12);
    });
}

// At level Parameters the second backward needs unsharded weights.
TEST(ShardAttack, TrainsOnGradientPenaltyInsideUnshard) {
  Trial trial{.model = make<TwoLinears>, .loss = penalty_loss, .steps = 1};
  trial.optimizer = [](auto parameters) {
    return std::make_shared<torch::optim::SGD>(parameters, 0.1);
  };
  const Weights expected = plainly(trial);
  spawn(2, [&](World& world) {
    const DeviceMesh mesh(world, {{"shard", 2}});
    ShardedModule<Model> model(make<TwoLinears>(), mesh, {.level = ShardLevel::Parameters});
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    const Call call = [&](const at::Tensor& x) { return model.forward(x); };
    {
      const auto whole = model.unshard();
      model.backward(penalty_loss(call, input_of(trial, 0).narrow(0, 2 * world.rank(), 2)));
    }
    optimizer.step();
    EXPECT_LT(distance(expected, model.state()), 1e-12);
  });
}

TEST(ShardAttack, RunsTwoBackwardsThroughOneGraph) {
  Trial trial{.model = make<TwoLinears>};
  trial.loss = [](const Call& call, const at::Tensor& x) {
    const at::Tensor y = call(x);
    y.square().mean().backward({}, /*retain_graph=*/true);
    return y.abs().mean();
  };
  expect_same(trial);
}

TEST(ShardAttack, TrainsWithEveryOptimizer) {
  using Made = std::shared_ptr<torch::optim::Optimizer>;
  std::vector<std::function<Made(std::vector<at::Tensor>)>> kinds = {
      [](auto p) {
        return std::make_shared<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9));
      },
      [](auto p) { return std::make_shared<torch::optim::Adam>(p, 0.05); },
      [](auto p) { return std::make_shared<torch::optim::RMSprop>(p, 0.05); },
      [](auto p) { return std::make_shared<torch::optim::Adagrad>(p, 0.05); }};
  for (const std::string& name : optim::optimizer_names())
    kinds.push_back([name](auto p) {
      return Made(
          optim::make_optimizer(p, {.name = name, .learning_rate = 0.05, .weight_decay = 0.1}));
    });
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    SCOPED_TRACE("kind " + std::to_string(kind));
    expect_same(
        {.model = make<TwoLinears>, .ranks = kind % 2 == 0 ? 2 : 7, .optimizer = kinds[kind]});
  }
}

// Two models with an optimizer each; the backward of one passes through the other.
TEST(ShardAttack, TrainsGan) {
  const auto train = [](const Call& generator, const Call& judge, torch::nn::Module& judged,
                        torch::optim::Optimizer& g, torch::optim::Optimizer& d, const auto& part) {
    for (int step = 0; step < 3; ++step) {
      const at::Tensor noise = part(rows(4, 100 + static_cast<std::uint64_t>(step)));
      const at::Tensor real = part(rows(4, 200 + static_cast<std::uint64_t>(step)));
      d.zero_grad();
      judge(real).square().mean().backward();
      judge(generator(noise).detach()).abs().mean().backward();
      d.step();
      g.zero_grad();
      for (const at::Tensor& parameter : judged.parameters())
        parameter.set_requires_grad(step == 1);
      judge(generator(noise)).square().mean().backward();
      for (const at::Tensor& parameter : judged.parameters()) parameter.set_requires_grad(true);
      g.step();
    }
  };
  const auto g = make<TwoLinears>(), d = make<InPlace>();
  torch::optim::Adam g_steps(g->parameters(), 0.05), d_steps(d->parameters(), 0.05);
  train([&](const auto& x) { return g->forward(x); }, [&](const auto& x) { return d->forward(x); },
        *d, g_steps, d_steps, [](const at::Tensor& all) { return all; });
  Weights expected;
  for (const auto& item : g->named_parameters()) expected["g." + item.key()] = item.value();
  for (const auto& item : d->named_parameters()) expected["d." + item.key()] = item.value();
  for (const ShardLevel level : levels)
    spawn(2, [&](World& world) {
      const DeviceMesh mesh(world, {{"shard", 2}});
      const auto own_g = make<TwoLinears>(), own_d = make<InPlace>();
      ShardedModule<Model> generator(own_g, mesh, {.level = level});
      ShardedModule<Model> judge(own_d, mesh, {.level = level});
      torch::optim::Adam own_g_steps(generator.parameters(), 0.05);
      torch::optim::Adam own_d_steps(judge.parameters(), 0.05);
      train([&](const auto& x) { return generator.forward(x); },
            [&](const auto& x) { return judge.forward(x); }, *own_d, own_g_steps, own_d_steps,
            [&](const at::Tensor& all) { return all.narrow(0, 2 * world.rank(), 2); });
      NamedTensors actual;
      for (auto& [name, tensor] : generator.state()) actual.emplace_back("g." + name, tensor);
      for (auto& [name, tensor] : judge.state()) actual.emplace_back("d." + name, tensor);
      EXPECT_LT(distance(expected, actual), 1e-12) << to_string(level);
    });
}

TEST(ShardAttack, ComputesEveryNormWithEmptyShards) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double p : {1.0, 2.0, 3.0, infinity}) {
    const auto plain = make<Odd>();
    plain->forward(rows(7, 3)).square().mean().backward();
    std::vector<at::Tensor> members;  // torch's norm does not accept empty tensors
    for (const at::Tensor& parameter : plain->parameters())
      if (parameter.numel() > 0) members.push_back(parameter);
    const double expected = torch::nn::utils::clip_grad_norm_(members, 0.5, p);
    for (const ShardLevel level : levels)
      spawn(7, [&](World& world) {
        ShardedModule<Model> model(make<Odd>(), {world, {{"shard", 7}}}, {.level = level});
        const at::Tensor x = rows(7, 3).narrow(0, world.rank(), 1);
        model.backward(model.forward(x).square().mean());
        EXPECT_NEAR(model.clip_grad_norm(0.5, {.p = p}), expected, 1e-9);
        EXPECT_NEAR(model.clip_grad_norm(1e9, {.p = p}), 0.5, 1e-5);
        // A NaN on one rank makes the norm non-finite on all ranks.
        for (const at::Tensor& parameter : model.parameters())
          if (parameter.numel() > 0 && parameter.grad().defined() && world.rank() == 0)
            parameter.mutable_grad().flatten()[0].fill_(std::nan(""));
        if (level != ShardLevel::None) {
          EXPECT_FALSE(std::isfinite(model.clip_grad_norm(0.5, {.p = p}))) << p;
        }
      });
  }
}

// Gradients zeroed in place, gradients not zeroed, and gradients to which the caller holds
// references.
TEST(ShardAttack, LeavesGradientsHeldByCallerUnchanged) {
  for (const ShardLevel level : levels)
    spawn(2, [&](World& world) {
      const at::Tensor x = rows(4, 3).narrow(0, 2 * world.rank(), 2);
      ShardedModule<Model> model(make<TwoLinears>(), {world, {{"shard", 2}}}, {.level = level});
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      const auto pass = [&](double scale) { model.backward(model.forward(x * scale).sum()); };
      pass(1);
      pass(1);  // buckets are rebuilt after the first step
      optimizer.zero_grad();
      pass(2);
      std::vector<at::Tensor> kept, copies;
      for (const at::Tensor& parameter : model.parameters()) {
        kept.push_back(parameter.grad());
        copies.push_back(parameter.grad().clone());
      }
      optimizer.zero_grad();
      pass(3);
      for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(kept[i].equal(copies[i]));
      optimizer.zero_grad(/*set_to_none=*/false);
      pass(2);
      const auto parameters = model.parameters();
      for (std::size_t i = 0; i < kept.size(); ++i)
        EXPECT_TRUE(parameters[i].grad().allclose(copies[i]));
      pass(2);
      for (std::size_t i = 0; i < kept.size(); ++i)
        EXPECT_TRUE(parameters[i].grad().allclose(2 * copies[i]));
    });
}

TEST(ShardAttack, RunsParameterHooksAndGroupsByName) {
  const auto hooked = [] {
    const auto net = make<TwoLinears>();
    net->parameters()[0].register_hook([](const at::Tensor& gradient) { return gradient * 3; });
    return net;
  };
  const auto groups = [](const auto& named) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const bool decays : {true, false}) {
      std::vector<at::Tensor> members;
      for (const auto& [name, tensor] : named)
        if (name.ends_with("weight") == decays) members.push_back(tensor);
      groups.emplace_back(members,
                          std::make_unique<torch::optim::AdamWOptions>(
                              torch::optim::AdamWOptions(0.05).weight_decay(decays * 0.3)));
    }
    return groups;
  };
  const auto plain = hooked();
  NamedTensors named;
  for (const auto& item : plain->named_parameters()) named.emplace_back(item.key(), item.value());
  torch::optim::AdamW steps(groups(named), torch::optim::AdamWOptions());
  for (int step = 0; step < 3; ++step) {
    steps.zero_grad();
    plain->forward(rows(4, 3)).square().mean().backward();
    steps.step();
  }
  for (const ShardLevel level : levels)
    spawn(2, [&](World& world) {
      ShardedModule<Model> model(hooked(), {world, {{"shard", 2}}}, {.level = level});
      torch::optim::AdamW own(groups(model.named_parameters()), torch::optim::AdamWOptions());
      for (int step = 0; step < 3; ++step) {
        own.zero_grad();
        model.backward(model.forward(rows(4, 3).narrow(0, 2 * world.rank(), 2)).square().mean());
        own.step();
      }
      EXPECT_LT(distance({named.begin(), named.end()}, model.state()), 1e-12);
    });
}

TEST(ShardAttack, RunsLbfgsClosureAtLevelNone) {
  const auto closure_of = [](auto& optimizer, const Call& call, const at::Tensor& x, auto share) {
    return [&optimizer, call, x, share] {
      optimizer.zero_grad();
      at::Tensor loss = call(x).square().mean();
      loss.backward();
      return share(loss.detach());
    };
  };
  const auto plain = make<TwoLinears>();
  torch::optim::LBFGS steps(plain->parameters(), 0.1);
  for (int step = 0; step < 2; ++step)
    steps.step(closure_of(
        steps, [&](const auto& x) { return plain->forward(x); }, rows(4, 3),
        [](const at::Tensor& loss) { return loss; }));
  Weights expected;
  for (const auto& item : plain->named_parameters()) expected[item.key()] = item.value();
  spawn(2, [&](World& world) {
    ShardedModule<Model> model(make<TwoLinears>(), {world, {{"shard", 2}}}, {});
    torch::optim::LBFGS own(model.parameters(), 0.1);
    for (int step = 0; step < 2; ++step)
      own.step(closure_of(
          own, [&](const auto& x) { return model.forward(x); },
          rows(4, 3).narrow(0, 2 * world.rank(), 2),
          [&](at::Tensor loss) {
            loss = loss.clone();
            world.group().all_reduce(loss).wait();
            return loss / 2;
          }));
    EXPECT_LT(distance(expected, model.state()), 1e-9);
  });
}

// Dropout neither reads nor advances the default generator. It does not depend on who calls
// backward().
TEST(ShardAttack, DropoutLeavesDefaultGeneratorUnchanged) {
  struct Drop : TwoLinears {
    at::Tensor forward(const at::Tensor& x) override {
      return b(torch::dropout(torch::tanh(a(x)), 0.5, is_training()));
    }
  };
  std::vector<double> sums;
  for (const bool own : {true, false}) {
    std::vector<double> found = spawn(2, [&](World& world) {
      ShardedModule<Model> model(make<Drop>(), {world, {{"shard", 2}}}, {.seed = 4});
      const at::Tensor before = at::globalContext().defaultGenerator(at::kCPU).get_state();
      double sum = 0;
      for (int step = 0; step < 3; ++step) {
        const at::Tensor loss = model.forward(rows(2, 3)).square().sum();
        sum += loss.item<double>() * (step + 1);
        if (own)
          model.backward(loss);
        else
          loss.backward();
      }
      EXPECT_TRUE(at::globalContext().defaultGenerator(at::kCPU).get_state().equal(before));
      return sum;
    });
    EXPECT_NE(found[0], found[1]);
    if (!own) {
      EXPECT_EQ(found, sums);
    }
    sums = found;
  }
}

}  // namespace
}  // namespace trestle
