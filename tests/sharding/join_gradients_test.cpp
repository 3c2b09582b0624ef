// Gradients from before a backward, on a rank that shadows the active ranks.
#include <gmock/gmock.h>

#include "join_nets.h"
#include "trestle/nn/layers.h"
#include "trestle/sharding/join.h"

namespace trestle::testing {
namespace {

// Two reduced backwards accumulate. The active rank holds no shard of some gradients. One gradient
// is cleared while another, which this optimizer does not own, stays.
TEST(Join, KeepsAccumulatedGradientsThatActiveRankDoesNotHold) {
  const auto train = [](const Call& forward, const std::function<void(const at::Tensor&)>& backward,
                        const std::vector<at::Tensor>& parameters,
                        const std::function<void()>& after_each) {
    for (int step = 0; step < 4; ++step) {
      if (step == 2) parameters[0].mutable_grad().reset();
      backward(forward(rows(3, static_cast<std::uint64_t>(step))).square().mean());
      after_each();
    }
  };
  const auto net = make<TwoLinears>();
  torch::optim::SGD plain(net->parameters(), 0.05);
  train([&](const at::Tensor& x) { return net->forward(x); },
        [](const at::Tensor& loss) { (loss / 2).backward(); }, net->parameters(),
        [&] { plain.step(); });
  for (const ShardLevel level : levels) {
    for (const int has_batches : {0, 1}) {
      SCOPED_TRACE(std::string(to_string(level)) + ", batches on " + std::to_string(has_batches));
      spawn(2, [&](World& world) {
        const nn::Layers own = in_layers();
        Sharded sharded(own, DeviceMesh(world, {{"shard", 2}}), {.level = level});
        torch::optim::SGD optimizer(sharded.parameters(), 0.05);
        const auto batches = [&] {
          if (world.rank() != has_batches) return;
          train([&](const at::Tensor& x) { return sharded.forward(x); },
                [&](const at::Tensor& loss) { sharded.backward(loss); }, sharded.parameters(),
                [&] { optimizer.step(); });
        };
        join({&sharded}, batches, {.after_backward = [&] { optimizer.step(); }});
        EXPECT_LT(distance(weights_of(*net), sharded.state()), 1e-12) << "rank " << world.rank();
      });
    }
  }
}

// To an optimizer with momentum or decay, a zero gradient differs from none; also on a shadowing
// rank.
TEST(Join, ShadowingRanksStepZeroedGradients) {
  struct Branch : TwoLinears {
    at::Tensor forward(const at::Tensor& x) override {
      const at::Tensor y = torch::tanh(a(x));
      return uses_b ? b(y) : y;
    }
    bool uses_b = true;
  };
  const auto train = [](int from, int to, Branch& net, torch::optim::Optimizer& optimizer,
                        const std::function<void(int)>& backward) {
    for (int step = from; step < to; ++step) {
      net.uses_b = step == 0;
      optimizer.zero_grad(/*set_to_none=*/false);
      backward(step);
      optimizer.step();
    }
  };
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1);
  const auto plain = std::static_pointer_cast<Branch>(make<Branch>());
  torch::optim::SGD plain_optimizer(plain->parameters(), options);
  train(0, 4, *plain, plain_optimizer, [&](int step) {
    plain->forward(rows(3, static_cast<std::uint64_t>(step))).square().mean().backward();
  });
  for (const ShardLevel level : levels)
    spawn(2, [&](World& world) {
      const auto net = std::static_pointer_cast<Branch>(make<Branch>());
      ShardedModule<Model> model(net, DeviceMesh(world, {{"shard", 2}}),
                                 {.level = level, .unused_parameters = UnusedParameters::Find});
      torch::optim::SGD optimizer(model.parameters(), options);
      const auto run = [&](int from, int to) {
        train(from, to, *net, optimizer, [&](int step) {
          model.backward(model.forward(rows(3, static_cast<std::uint64_t>(step))).square().mean(),
                         3);
        });
      };
      run(0, 1);
      join({&model}, [&] { run(1, world.rank() == 0 ? 2 : 4); },
           {.after_backward = [&] { optimizer.step(); }});
      EXPECT_LT(distance(weights_of(*plain), model.state()), 1e-12)
          << to_string(level) << ", rank " << world.rank();
    });
}

// Once the gradients of no_sync() are cleared, no reduction is pending.
TEST(Join, EndsAfterZeroGradClearedNoSyncGradients) {
  for (const ShardLevel level : levels)
    spawn(2, [&](World& world) {
      Sharded model(in_layers(), DeviceMesh(world, {{"shard", 2}}), {.level = level});
      const at::Tensor x = rows(3, 1);
      const auto batches = [&] {
        {
          const auto no_sync = model.no_sync();
          model.backward(model.forward(x).sum());
        }
        model.zero_grad();
      };
      EXPECT_NO_THROW(join({&model}, batches)) << to_string(level);
    });
}

// Two units share a weight. In the unit whose backward runs last, the first layer does not use it.
TEST(Join, ShadowsUnitsThatShareWeight) {
  const auto net = [] {
    nn::Layers made(nn::Seed{3});
    const auto linear = [](int in, int out) {
      torch::nn::Linear made(in, out);
      made->to(at::kDouble);
      return made;
    };
    made.add("in", [=] { return linear(width, width); });
    made.add("first", [=] { return linear(width, width); });
    made.add("second", [=] { return linear(width, width); });
    made.add("out", [=] { return linear(width, width); });
    made.tie("second.weight", "first.weight");
    return made;
  };
  const nn::Layers plain = net();
  torch::optim::SGD plain_optimizer(plain.parameters(), 0.05);
  for (int step = 0; step < 3; ++step) {
    plain_optimizer.zero_grad();
    plain.forward(rows(3, static_cast<std::uint64_t>(step))).square().mean().backward();
    plain_optimizer.step();
  }
  Weights expected;
  for (const auto& [name, tensor] : plain.named_parameters()) expected[name] = tensor.detach();
  spawn(2,
        [&](World& world) {
          Sharded model(net(), DeviceMesh(world, {{"shard", 2}}),
                        {.level = ShardLevel::Parameters, .units = {.names = {"in", "second"}}});
          torch::optim::SGD optimizer(model.parameters(), 0.05);
          const auto batches = [&] {
            for (int step = 0; step < (world.rank() == 0 ? 3 : 1); ++step) {
              optimizer.zero_grad();
              const at::Tensor x = rows(3, static_cast<std::uint64_t>(step));
              model.backward(model.forward(x).square().mean(), 3);
              optimizer.step();
            }
          };
          join({&model}, batches, {.after_backward = [&] { optimizer.step(); }});
          EXPECT_LT(distance(expected, model.state()), 1e-12) << "rank " << world.rank();
        },
        {.deadline = std::chrono::seconds(20)});
}

}  // namespace
}  // namespace trestle::testing
