// UnusedParameters::Static: the first step determines which parameters get gradients.
#include <gmock/gmock.h>

#include "attack_ranks.h"
#include "trestle/sharding/hooks/hooked.h"

namespace trestle {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

struct Branches : Model {
  Branches() {
    a = register_module("a", torch::nn::Linear(width, 7));
    b = register_module("b", torch::nn::Linear(7, width));
    c = register_module("c", torch::nn::Linear(7, width));
    d = register_module("d", torch::nn::Linear(7, width));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor linear = a(x);
    if (on_gradient) linear.register_hook([this](const at::Tensor&) { on_gradient(); });
    const at::Tensor hidden = torch::tanh(linear);
    at::Tensor y = b(hidden);
    if (uses_c) y = y + c(hidden);
    if (uses_d) y = y + d(hidden);
    return y;
  }
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr}, d{nullptr};
  bool uses_c = false, uses_d = false;
  std::function<void()> on_gradient;
};

std::shared_ptr<Branches> branches() {
  return std::static_pointer_cast<Branches>(make<Branches>());
}

torch::optim::AdamW optimizer_of(const std::vector<at::Tensor>& parameters) {
  return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.05).weight_decay(0.1));
}

constexpr UnusedParameters is_static = UnusedParameters::Static;

// Only the first of two ranks uses c. No rank uses d, so an optimizer with decay skips it.
TEST(ShardedStatic, TrainsToPlainModelsWeights) {
  const auto plain = branches();
  auto plain_optimizer = optimizer_of(plain->parameters());
  for (int step = 0; step < 4; ++step) {
    plain_optimizer.zero_grad();
    at::Tensor loss;
    for (int rank = 0; rank < 2; ++rank) {
      plain->uses_c = rank == 0;
      const at::Tensor x = rows(4, 100 + static_cast<std::uint64_t>(step)).narrow(0, 2 * rank, 2);
      const at::Tensor own = plain->forward(x).square().mean() / 2;
      loss = rank == 0 ? own : loss + own;
    }
    loss.backward();
    plain_optimizer.step();
  }
  const Weights expected = weights_of(*plain);
  for (const Bytes bucket : {Bytes{100}, Bytes{1} << 20})
    each_level(2, {.unused_parameters = is_static, .buckets = {.size = bucket, .first = bucket}},
               [&](World& world, const ShardOptions& options) {
                 const auto net = branches();
                 net->uses_c = world.rank() == 0;
                 ShardedModule<Model> model(net, shards(world), options);
                 auto optimizer = optimizer_of(model.parameters());
                 for (int step = 0; step < 4; ++step) {
                   optimizer.zero_grad();
                   const at::Tensor x = own_rows(world, step);
                   if (step == 2) {
                     const auto no_sync = model.no_sync();
                     model.backward(model.forward(x).square().mean() / 2);
                   }
                   model.backward(model.forward(x).square().mean() / (step == 2 ? 2 : 1));
                   optimizer.step();
                 }
                 EXPECT_LT(distance(expected, model.state()), 1e-12);
                 EXPECT_EQ(model.report().unused_checks, 1);
               });
}

// A reduction does not wait for a parameter without a gradient.
TEST(ShardedStatic, ReducesWithoutWaitingForUnusedParameters) {
  for (const UnusedParameters unused : {UnusedParameters::Find, is_static})
    spawn(2, [&](World& world) {
      const auto net = branches();
      ShardedModule<Model> model(net, shards(world),
                                 {.level = ShardLevel::OptimizerState,
                                  .unused_parameters = unused,
                                  .buckets = {.size = 1, .first = 1}});
      std::int64_t begun = 0;
      net->on_gradient = [&] { begun = model.report().reductions; };
      for (int step = 0; step < 3; ++step) {
        const std::int64_t before = model.report().reductions;
        model.backward(model.forward(own_rows(world, step)).sum());
        // The buckets of d and c, which have no gradient, and of b come before a's.
        EXPECT_EQ(begun - before, unused == is_static && step > 0 ? 6 : 0) << step;
        EXPECT_EQ(model.report().reductions - before, 8);
        EXPECT_EQ(model.report().unused_checks, unused == is_static ? 1 : step + 1);
      }
    });
}

// A rank without samples is not bound by the static graph; it records its own once it has samples.
TEST(ShardedStatic, AllowsRankWithoutSamples) {
  spawn(2, [](World& world) {
    for (const ShardLevel level : {ShardLevel::None, ShardLevel::Gradients}) {
      const auto net = branches();
      ShardedModule<Model> model(net, shards(world),
                                 {.level = level, .unused_parameters = is_static});
      for (int step = 0; step < 4; ++step) {
        if (world.rank() == 1 && step % 2 == 0)
          model.backward_without_samples();
        else
          model.backward(model.forward(own_rows(world, step)).sum(), 2);
      }
      EXPECT_EQ(model.report().steps, 4);
    }
  });
}

TEST(ShardedStatic, NamesStepThatDiffersFromFirst) {
  using Change = std::function<void(Branches&)>;
  const std::vector<std::pair<Change, std::string>> changes = {
      {[](Branches& net) { net.uses_d = true; },
       "' got a gradient, but got none in the first step"},
      {[](Branches& net) { net.uses_c = false; },
       "'c.weight' got 0 gradients, but 1 in the first step"},
      {[](Branches& net) {
         net.on_gradient = [&net] {  // a backward inside the backward
           const at::AutoGradMode with_grad(true);
           net.b(rows(1, 1, 7)).sum().backward();
         };
       },
       "'b.weight' got 2 gradients, but 1 in the first step"}};
  for (const auto& [change, words] : changes)
    for (const ShardLevel level : {ShardLevel::None, ShardLevel::Gradients})
      expect_error(
          2,
          [&, &change = change](World& world) {
            const auto net = branches();
            net->uses_c = true;
            ShardedModule<Model> model(net, shards(world),
                                       {.level = level, .unused_parameters = is_static});
            for (int step = 0; step < 3; ++step) {
              if (step == 2 && world.rank() == 1) change(*net);
              model.backward(model.forward(own_rows(world, step)).sum());
            }
          },
          words);
}

// One rank's backward skips the last five of six units. No rank waits for a reduction that the
// other rank starts only after it has unsharded all units.
struct CutChain : Model {
  CutChain() {
    for (int i = 0; i < 6; ++i)
      layers->push_back(HookedHolder<torch::nn::LinearImpl>(width, width));
    register_module("layers", layers);
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor y = x, first;
    for (auto& layer : *layers) {
      y = torch::tanh(layer.forward(y));
      if (!first.defined()) first = y;
    }
    return cuts ? first + y.detach() : y;
  }
  torch::nn::Sequential layers;
  bool cuts = false;
};

TEST(ShardedStatic, TrainsWhenOneRanksBackwardSkipsUnits) {
  const auto plain = std::static_pointer_cast<CutChain>(make<CutChain>());
  SGD plain_optimizer(plain->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    plain_optimizer.zero_grad();
    for (int rank = 0; rank < 2; ++rank) {
      plain->cuts = rank == 1;
      const at::Tensor x = rows(4, 100 + static_cast<std::uint64_t>(step)).narrow(0, 2 * rank, 2);
      (plain->forward(x).square().mean() / 2).backward();
    }
    plain_optimizer.step();
  }
  const Weights expected = weights_of(*plain);
  each_level(2, {.unused_parameters = is_static}, [&](World& world, const ShardOptions& options) {
    const auto net = std::static_pointer_cast<CutChain>(make<CutChain>());
    net->cuts = world.rank() == 1;
    ShardedModule<Model> model(net, shards(world), options);
    SGD optimizer(model.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model.backward(model.forward(own_rows(world, step)).square().mean());
      optimizer.step();
    }
    EXPECT_LT(distance(expected, model.state()), 1e-12);
  });
}

}  // namespace
}  // namespace trestle
