// Units inside a torch module: calls between a forward and its backward, and between steps.
#include <gmock/gmock.h>

#include "hooked_chain.h"

namespace trestle::testing {
namespace {

// Recomputed units, failed forwards, and evaluations and single-unit calls between forward and
// backward.
TEST(HookedUnits, TrainWithEvaluationsAndFailuresBetweenSteps) {
  const Weights expected = plainly({.model = make<Chain<Plain>>, .steps = 4});
  for (const bool recomputes : {false, true})
    for (const Reshard reshard : {Reshard(true), Reshard(false)})
      spawn(2, [&](World& world) {
        const auto net = hooked_chain();
        net->recomputes = recomputes;
        ShardedModule<Model> model(
            net, shards(world),
            {.level = ShardLevel::Parameters, .reshard_after_forward = reshard});
        const auto optimizer = Trial{}.optimizer(model.parameters());
        for (int step = 0; step < 4; ++step) {
          optimizer->zero_grad();
          const at::Tensor x = own_rows(world, step);
          if (step != 1) {
            net->block(2).on_forward = [] { throw std::runtime_error("boom"); };
            EXPECT_THROW(model.forward(x), std::runtime_error);
            net->block(2).on_forward = nullptr;
          }
          const at::Tensor y = model.forward(x);
          {
            const at::NoGradGuard no_grad;
            net->eval();
            EXPECT_LT((model.forward(x) - y).abs().max().item<double>(), 1e-14);
            net->blocks[1]->as<Hooked<BlockImpl>>()->forward(x);
            net->train();
          }
          y.square().mean().backward();
          optimizer->step();
        }
        EXPECT_LT(distance(expected, model.state()), 1e-12);
      });
}

// The shards that few ranks keep are created inside a checkpointed function, which does not write
// to them.
TEST(HookedUnits, RecomputeTogetherWithReshardAmongFewRanks) {
  const Weights expected = plainly({.model = make<Chain<Plain>>, .ranks = 4, .steps = 4});
  spawn(4, [&](World& world) {
    const auto net = hooked_chain();
    net->recomputes = true;
    ShardedModule<Model> model(net, shards(world),
                               {.level = ShardLevel::Parameters, .reshard_after_forward = 2});
    const auto optimizer = Trial{}.optimizer(model.parameters());
    for (int step = 0; step < 4; ++step) {
      optimizer->zero_grad();
      model.backward(model.forward(own_rows(world, step)).square().mean());
      optimizer->step();
    }
    EXPECT_LT(distance(expected, model.state()), 1e-12);
  });
}

// Parameters kept for a backward that never comes are from before the step.
TEST(HookedUnits, CalledAloneHaveLastStepsWeights) {
  for (const Reshard reshard : {Reshard(true), Reshard(false), Reshard(2)})
    spawn(4, [&](World& world) {
      const auto net = hooked_chain();
      ShardedModule<Model> model(
          net, shards(world), {.level = ShardLevel::Parameters, .reshard_after_forward = reshard});
      torch::optim::SGD optimizer(model.parameters(), 0.5);
      const at::Tensor x = own_rows(world, 0);
      model.backward(model.forward(x).square().mean());
      model.forward(x);  // its graph is never used
      optimizer.step();
      const at::NoGradGuard no_grad;
      const auto alone = [&] { return net->blocks[1]->as<Hooked<BlockImpl>>()->forward(x); };
      const at::Tensor y = alone();
      const auto whole = model.unshard();
      EXPECT_TRUE(at::equal(y, alone()));
      const auto& block = net->block(1);
      EXPECT_TRUE(
          at::equal(y, x + at::linear(at::tanh(at::linear(x, block.a->weight, block.a->bias)),
                                      block.b->weight, block.b->bias)));
    });
}

// A forward that threw must not leave the model in the middle of a step.
TEST(HookedUnits, CanBeCalledAloneAfterFailedForward) {
  spawn(2, [&](World& world) {
    const auto net = hooked_chain();
    ShardedModule<Model> model(net, shards(world), {.level = ShardLevel::Parameters});
    const at::Tensor x = own_rows(world, 0);
    model.backward(model.forward(x).square().mean());
    net->block(2).on_forward = [] { throw std::runtime_error("boom"); };
    EXPECT_THROW(model.forward(x), std::runtime_error);
    net->block(2).on_forward = nullptr;
    const auto alone = [&] { return net->blocks[1]->as<Hooked<BlockImpl>>()->forward(x); };
    const at::Tensor y = alone();
    model.zero_grad();
    model.backward(model.forward(x).square().mean());
    EXPECT_TRUE(at::equal(y, alone()));
  });
}

// Units some of whose calls have no backward, such as a detached target, and a frozen unit that
// runs twice.
template <template <class> class Unit>
struct CutOff : Model {
  explicit CutOff(int cut) : cut(cut) {
    for (int i = 0; i < 4; ++i)
      units->push_back(std::make_shared<Unit<torch::nn::LinearImpl>>(width, width));
    register_module("units", units);
    to(at::kDouble);
    if (cut == 3) units[2]->as<torch::nn::LinearImpl>()->weight.requires_grad_(false);
  }
  at::Tensor unit(std::size_t i, const at::Tensor& x) {
    return units[i]->template as<Unit<torch::nn::LinearImpl>>()->forward(x);
  }
  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor y = x;
    if (cut == 0) y = y + unit(2, y).detach();
    if (cut == 1) y = y + unit(3, unit(0, y)).detach();
    const auto all = [this](at::Tensor z) {
      for (std::size_t i = 0; i < 4; ++i) z = z + torch::tanh(unit(i, z));
      return z;
    };
    if (cut >= 5) {
      const at::Tensor first = torch::tanh(unit(0, y)), rest = again(all, y);
      return first + (passes_over ? rest.detach() : rest);
    }
    y = cut == 4 ? nn::checkpoint(all, y) : all(y);
    return cut == 2 ? y + unit(1, y).detach() : cut == 3 ? y + unit(2, y) : y;
  }
  template <class Function>
  at::Tensor again(const Function& function, const at::Tensor& x) {
    return cut == 6 ? nn::checkpoint(function, x) : function(x);
  }
  torch::nn::Sequential units;
  int cut;
  bool passes_over = false;
};

TEST(HookedUnits, RankWithoutSamplesSkipsCallsWithoutBackward) {
  for (const int cut : {0, 1, 2, 3, 4}) {
    const auto plain = make<CutOff<Plain>>(cut);
    const auto trained = [](const std::vector<at::Tensor>& all) {
      std::vector<at::Tensor> some;
      for (const auto& one : all)
        if (one.requires_grad()) some.push_back(one);
      return some;
    };
    SGD plain_optimizer(trained(plain->parameters()), 0.05);
    for (int step = 0; step < 4; ++step) {
      plain_optimizer.zero_grad();
      const at::Tensor x = rows(4, 100 + static_cast<std::uint64_t>(step));
      plain->forward(step == 0 ? x : x.narrow(0, 0, 2)).square().mean().backward();
      plain_optimizer.step();
    }
    const Weights expected = weights_of(*plain);
    for (const auto unused : {UnusedParameters::Refuse, UnusedParameters::Find})
      spawn(2,
            [&](World& world) {
              ShardedModule<Model> model(
                  make<CutOff<HookedUnit>>(cut), shards(world),
                  {.level = ShardLevel::Parameters, .unused_parameters = unused});
              SGD optimizer(model.parameters(), 0.05);
              for (int step = 0; step < 4; ++step) {
                optimizer.zero_grad();
                if (step > 0 && world.rank() == 1)
                  model.backward_without_samples();
                else
                  model.backward(model.forward(own_rows(world, step)).square().mean(), 2);
                optimizer.step();
              }
              EXPECT_LT(distance(expected, model.state()), 1e-12)
                  << "cut " << cut << ", rank " << world.rank();
            },
            {.deadline = std::chrono::seconds(20)});
  }
}

// One rank's backward skips units that are recomputed together (cut 6) or that follow a forward
// without a backward (cut 5).
TEST(HookedUnits, TrainWhenRanksSkipUnitsInDifferentOrders) {
  for (const int cut : {5, 6}) {
    const auto plain = std::static_pointer_cast<CutOff<Plain>>(make<CutOff<Plain>>(cut));
    SGD plain_optimizer(plain->parameters(), 0.05);
    for (int step = 0; step < 3; ++step) {
      plain_optimizer.zero_grad();
      for (int rank = 0; rank < 2; ++rank) {
        plain->passes_over = rank == 0;
        const at::Tensor x = rows(4, 100 + static_cast<std::uint64_t>(step)).narrow(0, 2 * rank, 2);
        (plain->forward(x).square().mean() / 2).backward();
      }
      plain_optimizer.step();
    }
    const Weights expected = weights_of(*plain);
    for (const auto unused : {UnusedParameters::Find, UnusedParameters::Static})
      spawn(2,
            [&](World& world) {
              const auto net =
                  std::static_pointer_cast<CutOff<HookedUnit>>(make<CutOff<HookedUnit>>(cut));
              net->passes_over = world.rank() == 0;
              ShardedModule<Model> model(
                  net, shards(world),
                  {.level = ShardLevel::Parameters, .unused_parameters = unused});
              SGD optimizer(model.parameters(), 0.05);
              for (int step = 0; step < 3; ++step) {
                optimizer.zero_grad();
                const at::Tensor x = own_rows(world, step);
                if (cut == 5) model.forward(x);
                model.backward(model.forward(x).square().mean());
                optimizer.step();
              }
              EXPECT_LT(distance(expected, model.state()), 1e-12)
                  << "cut " << cut << ", rank " << world.rank();
            },
            {.deadline = std::chrono::seconds(20)});
  }
}

}  // namespace
}  // namespace trestle::testing
