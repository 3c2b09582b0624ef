// Units inside a torch module train to the weights that libtorch alone gives.
#include "trestle/sharding/hooks/hooked.h"

#include <gmock/gmock.h>

#include "hooked_chain.h"
#include "trestle/base/error.h"

namespace trestle {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

// Several inputs and outputs; one output has no gradient.
struct SeveralImpl : torch::nn::Module {
  SeveralImpl() { fc = register_module("fc", torch::nn::Linear(width, 2 * width)); }
  std::tuple<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& x,
                                                          std::optional<at::Tensor> y,
                                                          double scale) {
    const auto halves = fc(x * scale).chunk(2, 1);
    return {halves[0] + (y ? *y : x), {halves[1], halves[1].argmax(1)}};
  }
  torch::nn::Linear fc{nullptr};
};

// Has a weight of its own and returns its inner unit's output.
template <template <class> class Unit>
struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    inner = register_module("inner", std::make_shared<Unit<BlockImpl>>(5));
    scale = register_parameter("scale", torch::full({width}, 1.25));
  }
  at::Tensor forward(const at::Tensor& x) const { return inner->forward(x * scale); }
  std::shared_ptr<Unit<BlockImpl>> inner;
  at::Tensor scale;
};

// Uses another module's weight twice: as a parameter and as a constant.
struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(const at::Tensor& other) { weight = register_parameter("weight", other); }
  at::Tensor forward(const at::Tensor& x) {
    return torch::linear(x, weight) * torch::linear(x, weight.detach());
  }
  at::Tensor weight;
};

// Units in a Sequential, nested, called twice, tied to one another and to the rest, and frozen.
template <template <class> class Unit>
struct ManyUnits : Model {
  ManyUnits() {
    blocks->push_back("first", std::make_shared<Unit<BlockImpl>>(7));
    blocks->push_back("second", std::make_shared<Unit<BlockImpl>>(4));
    register_module("blocks", blocks);
    several = register_module("several", std::make_shared<Unit<SeveralImpl>>());
    outer = register_module("outer", std::make_shared<Unit<OuterImpl<Unit>>>());
    frozen = register_module("frozen", std::make_shared<Unit<BlockImpl>>(3));
    const at::Tensor shared = several->fc->weight;
    tied = register_module("tied", std::make_shared<Unit<TiedImpl>>(shared));
    weight = register_parameter("weight", shared);
    bias = register_parameter("bias", torch::randn({2 * width}));
    for (const at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor y = blocks->forward(torch::sin(x));
    const auto [halves, others] = several->forward(y, x, 0.5);
    y = outer->forward(frozen->forward(outer->forward(outer->forward(halves))));
    torch::relu_(y);
    y = y + std::get<1>(several->forward(y, std::nullopt, 1.5))[0];
    at::Tensor constant;
    {
      const at::NoGradGuard no_grad;
      constant = blocks->forward(x);
    }
    return torch::linear(y + constant, weight, bias) + tied->forward(others[0]);
  }
  torch::nn::Sequential blocks;
  std::shared_ptr<Unit<SeveralImpl>> several;
  std::shared_ptr<Unit<OuterImpl<Unit>>> outer;
  std::shared_ptr<Unit<BlockImpl>> frozen;
  std::shared_ptr<Unit<TiedImpl>> tied;
  at::Tensor weight, bias;
};

TEST(HookedUnits, TrainToPlainModelsWeights) {
  Trial trial{.model = make<ManyUnits<Plain>>, .ranks = 1, .rows_a_rank = 6};
  const Weights expected = plainly(trial);
  trial.model = make<ManyUnits<HookedUnit>>;
  for (const bool reshard : {true, false})
    for (const int ranks : {1, 2, 3}) {
      trial.ranks = ranks;
      trial.rows_a_rank = 6 / ranks;
      trial.options.reshard_after_forward = reshard;
      spawn(ranks, [&](World& world) {
        for (const ShardLevel level : {ShardLevel::Gradients, ShardLevel::Parameters}) {
          if (level == ShardLevel::Gradients && (reshard || ranks != 2)) continue;
          const Weights weights = sharded(trial, world, level);
          EXPECT_LT(distance(expected, NamedTensors(weights.begin(), weights.end())), 1e-12)
              << "rank " << world.rank() << " of " << ranks;
        }
      });
    }
}

bool is_there(const at::Tensor& parameter) {
  try {
    return std::isfinite(parameter.sum().item<double>());
  } catch (const std::exception&) {
    return false;
  }
}

TEST(HookedUnits, AreUnshardedOneAfterAnother) {
  spawn(2, [](World& world) {
    const auto net = hooked_chain();
    ShardedModule<Model> model(net, shards(world), {.level = ShardLevel::Parameters});
    EXPECT_THAT(model.description(),
                HasSubstr("5 flat groups of 5 units (the rest of the model, blocks.0, blocks.1, "
                          "blocks.2, blocks.3)"));
    std::vector<std::vector<int>> seen;
    for (std::size_t i = 0; i < 4; ++i)
      net->block(i).on_forward = [&] {
        seen.emplace_back();
        for (std::size_t other = 0; other < 4; ++other)
          seen.back().push_back(is_there(net->block(other).a->weight) ? 1 : 0);
        EXPECT_TRUE(is_there(net->head->weight));
      };
    ShardReport before;
    for (int step = 0; step < 2; ++step) {
      seen.clear();
      before = model.report();
      const at::Tensor y = model.forward(own_rows(world));
      EXPECT_FALSE(is_there(net->block(3).a->weight));
      EXPECT_TRUE(is_there(net->head->weight));  // the backward begins with the head
      model.backward(y.square().mean());
      for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(is_there(parameter));
    }
    // In the second step one unit is prefetched.
    EXPECT_EQ(seen, (std::vector<std::vector<int>>{
                        {1, 1, 0, 0}, {0, 1, 1, 0}, {0, 0, 1, 1}, {0, 0, 0, 1}}));
    const ShardReport after = model.report();
    EXPECT_EQ(after.gathers - before.gathers, 5 + 4);
    EXPECT_EQ(after.reductions - before.reductions, 5);
  });
}

TEST(HookedUnits, AreSelectedByNameTypeAndSize) {
  const auto units = [](const ShardOptions& given) {
    return spawn(1,
                 [&](World& world) {
                   ShardOptions options = given;
                   options.level = ShardLevel::Parameters;
                   return Sharded(make<ManyUnits<HookedUnit>>(), shards(world), options)
                       .description();
                 })
        .at(0);
  };
  EXPECT_THAT(units({.units = {.names = {"blocks", "outer.inner"}}}),
              HasSubstr("(the rest of the model, blocks.first, blocks.second, outer.inner)"));
  EXPECT_THAT(units({.units = {.names = {"Block"}}}),
              HasSubstr("blocks.second, outer.inner, frozen)"));
  EXPECT_THAT(units({.units = {.bytes = 650}}),
              HasSubstr("(the rest of the model, blocks.first, several)"));
  EXPECT_THAT(units({.units = {.bytes = 1 << 20}}),
              HasSubstr("no module in it is a trestle::Hooked"));
  expect_error(
      2, [&](World&) { units({.units = {.names = {"blocks.frist"}}}); },
      "unknown unit 'blocks.frist'; did you mean 'blocks.first'?");
  EXPECT_THROW(units({.units = {.names = {"blocks"}, .bytes = 5}}), UsageError);
}

// A rank without samples communicates in the other ranks' order, also for nested, tied and reused
// units.
TEST(HookedUnits, TrainWithRankWithoutSamples) {
  const auto plain = make<ManyUnits<Plain>>();
  std::vector<at::Tensor> trained;
  std::set<void*> seen;
  for (const at::Tensor& parameter : plain->parameters())
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      trained.push_back(parameter);
  SGD optimizer(trained, 0.05);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    plain->forward(rows(6, 100 + static_cast<std::uint64_t>(step))).square().mean().backward();
    optimizer.step();
  }
  Weights expected;
  std::set<void*> known;
  for (const auto& item : plain->named_parameters())
    if (known.insert(item.value().unsafeGetTensorImpl()).second)
      expected[item.key()] = item.value().detach();
  for (const bool reshard : {true, false})
    spawn(3,
          [&](World& world) {
            ShardedModule<Model> model(
                make<ManyUnits<HookedUnit>>(), shards(world),
                {.level = ShardLevel::Parameters, .reshard_after_forward = reshard});
            SGD optimizer(model.parameters(), 0.05);
            for (int step = 0; step < 4; ++step) {
              optimizer.zero_grad();
              const at::Tensor x = rows(6, 100 + static_cast<std::uint64_t>(step));
              const int empty = step == 0 ? -1 : step % 3;
              const int share = world.rank() - (empty >= 0 && world.rank() > empty ? 1 : 0);
              const int size = empty < 0 ? 2 : 3;
              if (world.rank() == empty)
                model.backward_without_samples();
              else
                model.backward(model.forward(x.narrow(0, share * size, size)).square().mean(),
                               size);
              optimizer.step();
            }
            EXPECT_LT(distance(expected, model.state()), 1e-12) << "rank " << world.rank();
          },
          {.deadline = std::chrono::seconds(20)});
}

// The backward skips units on one rank, then on all ranks.
TEST(HookedUnits, TrainWhenBackwardSkipsThem) {
  const auto train = [](World& world, const std::function<void(bool)>& leave_out,
                        const Call& forward, const std::function<void(const at::Tensor&)>& backward,
                        const std::vector<at::Tensor>& parameters, bool whole) {
    SGD optimizer(parameters, 0.05);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      at::Tensor loss;
      for (int rank = 0; rank < 2; ++rank) {
        if (!whole && rank != world.rank()) continue;
        leave_out(step == 2 || rank == step);
        const at::Tensor x = rows(4, 100 + static_cast<std::uint64_t>(step)).narrow(0, 2 * rank, 2);
        const at::Tensor own = forward(x).square().mean() / (whole ? 2 : 1);
        loss = loss.defined() ? loss + own : own;
      }
      backward(loss);
      optimizer.step();
    }
  };
  spawn(2, [&](World& world) {
    const auto plain = std::static_pointer_cast<Chain<Plain>>(make<Chain<Plain>>());
    train(
        world, [&](bool out) { plain->leaves_head_out = out; },
        [&](const at::Tensor& x) { return plain->forward(x); },
        [](const at::Tensor& loss) { loss.backward(); }, plain->parameters(), true);
    const Weights expected = weights_of(*plain);
    const auto net = hooked_chain();
    ShardedModule<Model> model(
        net, shards(world),
        {.level = ShardLevel::Parameters, .unused_parameters = UnusedParameters::Find});
    train(
        world, [&](bool out) { net->leaves_head_out = out; },
        [&](const at::Tensor& x) { return model.forward(x); },
        [&](const at::Tensor& loss) { model.backward(loss); }, model.parameters(), false);
    EXPECT_LT(distance(expected, model.state()), 1e-12);
  });
}

// The destructor removes the hooks. While the first Sharded is alive, a second one is refused.
TEST(HookedUnits, BecomePlainWhenShardedIsDestroyed) {
  spawn(2, [](World& world) {
    const auto net = hooked_chain();
    const at::Tensor x = own_rows(world);
    const at::Tensor expected = net->forward(x);
    {
      std::optional<Sharded::Unsharded> whole;
      ShardedModule<Model> model(net, shards(world), {.level = ShardLevel::Parameters});
      EXPECT_THROW(ShardedModule<Model>(net, shards(world), {.level = ShardLevel::Parameters}),
                   UsageError);
      model.backward(model.forward(x).sum());
      whole.emplace(model.unshard());
      auto gone = std::make_shared<ShardedModule<Model>>(std::move(model));
      gone.reset();
    }
    EXPECT_TRUE(at::equal(net->forward(x), expected));
    net->forward(x).sum().backward();
    ShardedModule<Model> again(net, shards(world), {.level = ShardLevel::Parameters});
    again.backward(again.forward(x).sum());
  });
}

}  // namespace
}  // namespace trestle
