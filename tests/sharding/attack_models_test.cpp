// Unusual models: at every level they train to the weights that libtorch alone gives.
#include <ATen/autocast_mode.h>

#include <random>

#include "attack.h"
#include "trestle/device/virtual_device.h"
#include "trestle/nn/layers.h"

namespace trestle {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using torch::nn::Linear;

TEST(ShardAttack, TrainsInPlaceLayersAndViews) { expect_same({.model = make<InPlace>}); }

TEST(ShardAttack, TrainsParametersOfAnyShapeAndStrides) {
  for (const int ranks : {2, 5}) expect_same({.model = make<Odd>, .ranks = ranks});
}

struct Complex : Model {
  Complex() {
    w = register_parameter("w", at::randn({width, 3}, at::kComplexDouble));
    v = register_parameter("v", at::randn({3}, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) override {
    return at::view_as_real(x.to(at::kComplexDouble).matmul(w)).select(-1, 1) * v +
           x.to(at::kComplexDouble).matmul(w).abs();
  }
  at::Tensor w, v;
};

TEST(ShardAttack, TrainsComplexParameters) { expect_same({.model = make<Complex>, .ranks = 3}); }

struct MixedTypes : Model {
  MixedTypes() {
    single = register_module("single", Linear(width, 5));
    twice = register_module("twice", Linear(5, width));
    twice->to(at::kDouble);
    table = register_parameter("table", at::tensor({1, -1, 1000001}, at::kLong), false);
    on = register_parameter("on", at::tensor({1, 0}, at::kLong).to(at::kBool), false);
  }
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor scale = (table.select(0, 2) - 1000000) * on.select(0, 0);
    return twice(torch::tanh(single(x.to(at::kFloat))).to(at::kDouble)) * scale;
  }
  Linear single{nullptr}, twice{nullptr};
  at::Tensor table, on;
};

TEST(ShardAttack, TrainsSeveralDtypesInOneUnitAndIntegerParameters) {
  expect_same({.model = make<MixedTypes>, .tolerance = 1e-5});
}

struct Tied : Model {
  Tied() {
    a = register_module("a", Linear(width, width));
    b = register_module("b", Linear(width, width));
    to(at::kDouble);
    b->weight = b->register_parameter("tied", a->weight);
  }
  at::Tensor forward(const at::Tensor& x) override { return b(torch::tanh(a(a(x)))) + b(x); }
  Linear a{nullptr}, b{nullptr};
};

TEST(ShardAttack, TrainsTiedParametersAndModulesCalledTwice) {
  Trial trial{.model = [] {
    auto net = make<Tied>();
    for (const auto& item : net->named_parameters())  // b's own weight, which b does not use
      if (item.key() == "b.weight") item.value().set_requires_grad(false);
    return net;
  }};
  expect_same(trial);
}

struct Containers : TwoLinears {
  using Outputs =
      std::pair<std::vector<at::Tensor>, std::map<std::string, std::optional<at::Tensor>>>;
  Outputs all(const std::tuple<at::Tensor, int>& x) {
    const at::Tensor hidden = torch::tanh(a(std::get<0>(x)));
    return {{hidden, x_or_nothing}, {{"y", b(hidden)}, {"none", std::nullopt}}};
  }
  at::Tensor x_or_nothing;
};

TEST(ShardAttack, TrainsOnSomeOutputsOfNestedContainers) {
  for (const ShardLevel level : levels) {
    Trial trial{.model = make<TwoLinears>, .steps = 1};
    const Weights expected = plainly(trial);
    spawn(2, [&](World& world) {
      const DeviceMesh mesh(world, {{"shard", 2}});
      auto net = std::static_pointer_cast<Containers>(make<Containers>());
      Sharded model(net, mesh, {.level = level});
      const auto optimizer = trial.optimizer(model.parameters());
      const std::tuple<at::Tensor, int> x(input_of(trial, 0).narrow(0, 2 * world.rank(), 2), 3);
      auto outputs = model.run([&](const auto& given) { return net->all(given); }, x);
      EXPECT_FALSE(outputs.first[1].defined());
      model.backward(outputs.second["y"]->square().mean());
      optimizer->step();
      EXPECT_LT(distance(expected, model.state()), 1e-12);
    });
  }
}

// A random net with skips and with tied, frozen and reused layers. All ranks create the same one.
struct Random : Model {
  explicit Random(unsigned seed) : random(seed) {
    const int count = 2 + pick(5);
    for (int i = 0; i < count; ++i) {
      const std::string name = "layer" + std::to_string(i);
      const int like = pick(4) == 0 && i > 0 ? pick(i) : i;
      if (like == i)
        layers.push_back(register_module(name, Linear(width, width)));
      else
        layers.push_back(layers[static_cast<std::size_t>(like)]);
      skips.push_back(pick(i + 1));
      kinds.push_back(pick(5));
      if (kinds.back() == 3) norm(name);
    }
    scale = register_parameter("scale", at::ones({}));
    to(at::kDouble);
    for (const at::Tensor& parameter : parameters())
      if (pick(5) == 0) parameter.set_requires_grad(false);
    scale.set_requires_grad(true);
  }
  int pick(int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); }
  void norm(const std::string& name) {
    norms.emplace(
        layers.size() - 1,
        register_module(name + "_norm", torch::nn::LayerNorm(std::vector<std::int64_t>{width})));
  }
  at::Tensor forward(const at::Tensor& x) override {
    std::vector<at::Tensor> values = {x};
    for (std::size_t i = 0; i < layers.size(); ++i) {
      at::Tensor y = layers[i](values.back());
      if (kinds[i] == 0) y.relu_();
      if (kinds[i] == 1) y = torch::tanh(y);
      if (kinds[i] == 2) y = y + values[static_cast<std::size_t>(skips[i])];
      if (kinds[i] == 3) y = norms.at(i)(y);
      values.push_back(y);
    }
    return values.back() * scale;
  }
  std::mt19937 random;
  std::vector<Linear> layers;
  std::vector<int> skips, kinds;
  std::map<std::size_t, torch::nn::LayerNorm> norms;
  at::Tensor scale;
};

TEST(ShardAttack, TrainsRandomNets) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Trial trial{.model = [seed] { return make<Random>(seed); }, .steps = 2, .tolerance = 1e-10};
    constexpr int ranks[] = {2, 3, 2, 1, 5, 2, 3, 2, 7, 2};
    trial.ranks = ranks[seed % 10];
    // A frozen scale or dead ReLUs leave parameters unused.
    trial.options.unused_parameters = UnusedParameters::Find;
    if (seed % 3 == 0) trial.options.unused_parameters = UnusedParameters::Refuse;
    if (seed % 4 == 0) trial.options.buckets.size = trial.options.buckets.first = 0;
    if (seed % 4 == 1) trial.options.buckets.size = trial.options.buckets.first = 1 << 20;
    trial.options.reshard_after_forward = seed % 5 != 0;
    trial.rows_a_rank = 1 + seed % 3;
    expect_same(trial);
    if (HasFailure()) return;
  }
}

// Layers with skips, ties and frozen parameters, in units of any size.
struct CellImpl : torch::nn::Module {
  CellImpl() {
    weight = register_parameter("weight", torch::randn({width, width}) / 2);
    bias = register_parameter("bias", torch::randn({width}));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight, bias).relu_(); }
  at::Tensor weight, bias;
};
struct JoinImpl : CellImpl {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& skip) {
    return torch::tanh(torch::linear(x, weight, bias).view({-1, width})) + skip;
  }
};

nn::Layers random_layers(unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int count) {
    return static_cast<int>(random() % static_cast<unsigned>(count));
  };
  nn::Layers net(nn::Seed{seed});
  const int count = 3 + pick(6);
  std::vector<bool> joins, tied;
  for (int i = 0; i < count; ++i) {
    const std::string name = "cell" + std::to_string(i);
    joins.push_back(i > 0 && pick(3) == 0);
    if (joins.back()) {
      net.add(name, [] { return std::make_shared<JoinImpl>(); })
          .take("out" + std::to_string(pick(i)))
          .keep_output("out" + std::to_string(i));
    } else {
      net.add(name, [] { return std::make_shared<CellImpl>(); })
          .keep_output("out" + std::to_string(i));
      if (pick(3) == 0) net.add("act" + std::to_string(i), torch::nn::Tanh());
    }
    const int owner = pick(i + 1);
    tied.push_back(owner < i && !tied[static_cast<std::size_t>(owner)] && pick(2) == 0);
    if (tied.back())
      net.tie(name + ".weight", "cell" + std::to_string(owner) + ".weight", &CellImpl::weight);
  }
  for (const auto& [name, parameter] : net.named_parameters())
    if (name != "cell0.bias" && pick(5) == 0) parameter.set_requires_grad(false);
  return net;
}

TEST(ShardAttack, TrainsRandomLayersInUnitsOfAnySize) {
  const auto sgd = [](const std::vector<at::Tensor>& parameters) {
    return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  };
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int ranks = 1 + static_cast<int>(seed % 4), replicas = seed % 5 == 0 ? 2 : 1;
    const auto input = [&](int step) {
      return rows(ranks * replicas, 100 + static_cast<std::uint64_t>(step));
    };
    const nn::Layers plain = random_layers(seed);
    std::vector<at::Tensor> trained;
    for (const at::Tensor& parameter : plain.parameters())
      if (parameter.requires_grad()) trained.push_back(parameter);
    torch::optim::SGD plain_steps = sgd(trained);
    for (int step = 0; step < 3; ++step) {
      plain_steps.zero_grad();
      plain.forward(input(step)).square().mean().backward();
      plain_steps.step();
    }
    const NamedTensors named = plain.named_parameters();
    for (const ShardLevel level : levels)
      spawn(ranks * replicas, [&](World& world) {
        const DeviceMesh mesh(world, {{"replicate", replicas}, {"shard", ranks}});
        Sharded model(random_layers(seed), mesh,
                      {.level = level,
                       .reshard_after_forward = seed % 7 != 0,
                       .unused_parameters = UnusedParameters::Find,
                       .units = {.bytes = seed % 4 == 0 ? Bytes{0} : Bytes{300} * (seed % 4)},
                       .buckets = {.size = 300, .first = 300}});
        torch::optim::SGD steps = sgd(model.parameters());
        for (int step = 0; step < 3; ++step) {
          steps.zero_grad();
          model.backward(model.forward(input(step).narrow(0, world.rank(), 1)).square().mean());
          steps.step();
        }
        EXPECT_LT(distance({named.begin(), named.end()}, model.state()), 1e-9)
            << to_string(level) << ", rank " << world.rank();
      });
    if (HasFailure()) return;
  }
}

TEST(ShardAttack, TrainsRandomNetsOnVirtualDevices) {
  install_virtual_devices({.count = 3});
  for (unsigned seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_same({.model = [seed] { return make<Random>(seed); },
                 .ranks = 3,
                 .tolerance = 1e-10,
                 .device = at::Device(at::kPrivateUse1, 0)});
    if (HasFailure()) return;
  }
}

// Batch norms use each rank's own statistics; the next forward broadcasts rank 0's buffers. One
// norm has no buffers.
struct Norms : Model {
  Norms() {
    a = register_module("a", Linear(width, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    bare = register_module(
        "bare", torch::nn::BatchNorm1d(
                    torch::nn::BatchNorm1dOptions(width).affine(false).track_running_stats(false)));
    wide = register_buffer("wide", at::ones({1, width}).expand({5, width}));
    none = register_buffer("none", at::empty({0}));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) override { return bare(norm(a(x))); }
  Linear a{nullptr};
  torch::nn::BatchNorm1d norm{nullptr}, bare{nullptr};
  at::Tensor wide, none;
};

TEST(ShardAttack, TakesBuffersFromRank0) {
  for (const ShardLevel level : levels)
    spawn(2, [&](World& world) {
      const auto net = make<Norms>();
      const auto plain = make<Norms>();
      ShardedModule<Model> model(net, {world, {{"shard", 2}}}, {.level = level});
      for (int step = 0; step < 3; ++step) {
        const at::Tensor x = rows(8, 100 + static_cast<std::uint64_t>(step));
        model.backward(model.forward(x.narrow(0, 4 * world.rank(), 4)).sum());
        plain->forward(x.narrow(0, 0, 4));
      }
      for (const auto& [name, tensor] : model.state()) {
        if (name.starts_with("norm.running")) {
          EXPECT_TRUE(tensor.allclose(plain->named_buffers()[name])) << name;
        }
      }
      net->eval();
      plain->eval();
      const at::NoGradGuard no_grad;
      if (world.rank() == 0) {
        EXPECT_TRUE(model.forward(rows(4, 9)).allclose(plain->forward(rows(4, 9))));
      } else {
        model.forward(rows(4, 9));
      }
      EXPECT_EQ(net->named_buffers()["norm.num_batches_tracked"].item<int>(), 3);
    });
}

// Master weights in fp32, weights and gradients in bf16 or fp16, sums in fp32, compared with the
// same by hand.
struct Low : Model {
  Low() {
    a = register_module("a", Linear(width, 7));
    b = register_module("b", Linear(7, width));
    b->weight.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& x) override { return b(torch::tanh(a(x))); }
  Linear a{nullptr}, b{nullptr};
};

TEST(ShardAttack, TrainsInLowPrecisionWithMasterAndFrozenWeights) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const auto masters = make<Low>();
    const auto low = make<Low>();
    low->to(type);
    std::vector<at::Tensor> trained, computed;
    for (const auto& item : masters->named_parameters()) {
      if (!item.value().requires_grad()) continue;
      trained.push_back(item.value());
      computed.push_back(low->named_parameters()[item.key()]);
    }
    torch::optim::SGD by_hand(trained, 0.5);
    for (int step = 0; step < 3; ++step) {
      by_hand.zero_grad();
      for (int rank = 0; rank < 2; ++rank) {
        const at::Tensor x = rows(4, 100 + static_cast<std::uint64_t>(step)).narrow(0, 2 * rank, 2);
        low->zero_grad();
        low->forward(x.to(type)).to(at::kFloat).square().mean().backward();
        for (std::size_t i = 0; i < trained.size(); ++i) {
          const at::Tensor part = computed[i].grad().to(at::kFloat) / 2;
          if (rank == 0)
            trained[i].mutable_grad() = part;
          else
            trained[i].mutable_grad() += part;
        }
      }
      by_hand.step();
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < trained.size(); ++i) computed[i].copy_(trained[i]);
    }
    Weights expected;
    for (const auto& item : masters->named_parameters()) expected[item.key()] = item.value();
    for (const ShardLevel level :
         {ShardLevel::OptimizerState, ShardLevel::Gradients, ShardLevel::Parameters})
      spawn(2, [&](World& world) {
        const auto net = make<Low>();
        ShardedModule<Model> model(
            net, {world, {{"shard", 2}}},
            {.level = level,
             .precision = {.parameters = type, .reduce = at::kFloat, .output = at::kFloat}});
        torch::optim::SGD optimizer(model.parameters(), 0.5);
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          const at::Tensor x =
              rows(4, 100 + static_cast<std::uint64_t>(step)).narrow(0, 2 * world.rank(), 2);
          model.backward(model.forward(x).square().mean());
          optimizer.step();
        }
        EXPECT_LT(distance(expected, model.state()), 1e-6) << to_string(level);
      });
  }
}

TEST(ShardAttack, TrainsUnderAutocast) {
  Trial trial{.model = make<Low>, .tolerance = 1e-2};
  trial.loss = [](const Call& call, const at::Tensor& x) {
    const bool before = at::autocast::is_autocast_enabled(at::kCPU);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
    const at::Tensor y = call(x.to(at::kFloat));
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, before);
    return y.to(at::kFloat).square().mean();
  };
  trial.optimizer = [](auto p) { return std::make_shared<torch::optim::SGD>(p, 0.1); };
  expect_same(trial);
}

}  // namespace
}  // namespace trestle
