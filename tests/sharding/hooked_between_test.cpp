// Units inside of a torch module: what happens between a forward and its backward, and between steps.
#include <gmock/gmock.h>

#include "hooked_chain.h"

namespace trestle::testing {
namespace {

// Recomputed units, evaluations and calls of a unit alone between a forward and its backward, a forward that throws.
TEST(HookedUnits, WhatHappensBetweenSteps) {
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

// The parts that few ranks keep are made inside of a checkpointed function, which does not write to them.
TEST(HookedUnits, SeveralInOneCheckpointedFunctionWithFewRanksKeepingThem) {
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

// What is kept for a backward that does not come is from before the step.
TEST(HookedUnits, OneThatIsCalledAloneHasTheWeightsOfTheLastStep) {
  for (const Reshard reshard : {Reshard(true), Reshard(false), Reshard(2)})
    spawn(4, [&](World& world) {
      const auto net = hooked_chain();
      ShardedModule<Model> model(
          net, shards(world), {.level = ShardLevel::Parameters, .reshard_after_forward = reshard});
      torch::optim::SGD optimizer(model.parameters(), 0.5);
      const at::Tensor x = own_rows(world, 0);
      model.backward(model.forward(x).square().mean());
      model.forward(x);  // with a graph that nobody uses
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

// A forward of the model that threw is over.
TEST(HookedUnits, OneMayBeCalledAloneAfterAForwardThatThrew) {
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

}  // namespace
}  // namespace trestle::testing
