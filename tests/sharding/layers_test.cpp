// nn::Layers over ranks, at every level: units, skips, ties, frozen layers, dropout, batch norm, several forwards.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>

#include "trestle/base/error.h"
#include "trestle/comm/spawn.h"
#include "trestle/nn/graph.h"
#include "trestle/nn/layers.h"
#include "trestle/sharding/sharded.h"

namespace trestle {
namespace {

using testing::HasSubstr;
using Gradients = std::map<std::string, at::Tensor>;

constexpr auto levels = {ShardLevel::None, ShardLevel::OptimizerState, ShardLevel::Gradients,
                         ShardLevel::Parameters};

struct JoinImpl : torch::nn::Module {  // of a skip
  JoinImpl() { fc = register_module("fc", torch::nn::Linear(12, 6)); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& skip) {
    return fc(torch::cat({x, skip}, 1));
  }
  torch::nn::Linear fc{nullptr};
};

struct HeadImpl : torch::nn::Module {  // shares the weight of "embed"
  HeadImpl() { weight = register_parameter("weight", torch::randn({6, 6})); }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight); }
  at::Tensor weight;
};

// Layers as factories, so that each rank makes the same ones.
nn::Layers make_net(double dropout = 0) {
  nn::Layers net(nn::Seed{3});
  const auto linear = [](int in, int out) {
    return [=] {
      torch::nn::Linear layer(in, out);
      layer->to(torch::kDouble);
      return layer;
    };
  };
  net.add("embed", linear(6, 6));
  net.add("act", [] { return torch::nn::ReLU(torch::nn::ReLUOptions(true)); }).keep_output("s");
  net.add("middle", linear(6, 9));
  if (dropout > 0) net.add("drop", torch::nn::Dropout(dropout));
  net.add("down", linear(9, 6));
  net.add("join",
          [] {
            auto join = std::make_shared<JoinImpl>();
            join->to(torch::kDouble);
            return join;
          })
      .take("s");
  net.add("head", [] {
    auto head = std::make_shared<HeadImpl>();
    head->to(torch::kDouble);
    return head;
  });
  net.tie("head.weight", "embed.weight", &HeadImpl::weight);
  return net;
}

at::Tensor rows(std::int64_t count, std::int64_t width, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn({count, width}, generator, at::TensorOptions().dtype(at::kDouble));
}

at::Tensor loss_of(const at::Tensor& y, const at::Tensor& target) {
  return (y - target).square().mean();
}

Gradients gradients_of(const NamedTensors& parameters) {
  Gradients gradients;
  for (const auto& [name, tensor] : parameters) gradients[name] = tensor.grad();
  return gradients;
}

// The gradients of a sharded model, whole: each rank's parts put at their places.
Gradients whole_gradients(Sharded& sharded, const World& world, const NamedTensors& shapes) {
  Gradients gradients;
  for (const auto& [name, shard] : sharded.named_parameters()) {
    const at::Tensor own = shard.grad().defined() ? shard.grad() : at::zeros_like(shard);
    if (sharded.options().level == ShardLevel::None) {
      gradients[name] = shard.grad().defined() ? own.clone() : at::Tensor();
      continue;
    }
    const auto parts = world.group().all_gather_uneven(own.reshape(-1));
    for (const auto& [known, tensor] : shapes)
      if (known == name) gradients[name] = torch::cat(parts).view(tensor.sizes());
  }
  return gradients;
}

double difference(const Gradients& expected, const Gradients& actual) {
  double worst = expected.size() == actual.size() ? 0 : 1e9;
  for (const auto& [name, tensor] : actual) {
    const at::Tensor& other = expected.at(name);
    if (!other.defined() || !tensor.defined()) {
      if (tensor.defined() && tensor.abs().max().item<double>() > 0) worst = 1e9;
      continue;
    }
    worst = std::max(worst, (tensor - other).abs().max().item<double>());
  }
  return worst;
}

// Runs `body(world, sharded)` at each level on `ranks` ranks.
void at_each_level(int ranks, const std::function<nn::Layers()>& make, ShardOptions options,
                   const std::function<void(World&, Sharded&, const nn::Layers&)>& body) {
  for (const ShardLevel level : levels) {
    SCOPED_TRACE(std::string(to_string(level)));
    options.level = level;
    options.bucket = options.first_bucket = 256;
    spawn(ranks, [&](World& world) {
      const DeviceMesh mesh(world, {{"shard", ranks}});
      const nn::Layers net = make();
      Sharded sharded(net, mesh, options);
      body(world, sharded, net);
    });
  }
}

at::Tensor part(const at::Tensor& all, const World& world) {
  const std::int64_t count = all.size(0) / world.size();
  return all.narrow(0, world.rank() * count, count);
}

TEST(ShardedLayers, GiveThePlainModelsGradients) {
  const at::Tensor x = rows(12, 6, 1), y = rows(12, 6, 2);
  nn::Layers plain = make_net();
  loss_of(plain.forward(x), y).backward();
  const NamedTensors shapes = plain.named_parameters();
  for (const int ranks : {1, 2, 3})
    at_each_level(
        ranks, [] { return make_net(); }, {},
        [&](World& world, Sharded& sharded, const nn::Layers&) {
          for (int step = 0; step < 3; ++step) {  // buckets and order are learnt in the first
            sharded.zero_grad();
            loss_of(sharded.forward(part(x, world)), part(y, world)).backward();
            EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)),
                      1e-14);
          }
        });
}

TEST(ShardedLayers, UnitsOfSeveralLayersAndWithoutReshard) {
  const at::Tensor x = rows(4, 6, 1), y = rows(4, 6, 2);
  nn::Layers plain = make_net();
  loss_of(plain.forward(x), y).backward();
  const NamedTensors shapes = plain.named_parameters();
  for (const Bytes unit : {Bytes{0}, Bytes{500}, Bytes{1} << 20}) {
    for (const bool reshard : {true, false}) {
      spawn(2, [&](World& world) {
        const DeviceMesh mesh(world, {{"shard", 2}});
        Sharded sharded(
            make_net(), mesh,
            {.level = ShardLevel::Parameters, .unit = unit, .reshard_after_forward = reshard});
        for (int step = 0; step < 2; ++step) {
          sharded.zero_grad();
          sharded.backward(loss_of(sharded.forward(part(x, world)), part(y, world)));
          EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)),
                    1e-14);
        }
      });
    }
  }
}

// Replicas draw what the plain model's micro-batches draw.
TEST(ShardedLayers, DropoutIsThatOfTheGlobalMicroBatch) {
  const at::Tensor x = rows(6, 6, 1), y = rows(6, 6, 2);
  nn::Layers plain = make_net(0.5);
  const nn::Graph graph = plain.graph();
  for (std::int64_t m = 0; m < 3; ++m) {
    const at::Tensor out =
        nn::run(graph, {x.narrow(0, 2 * m, 2)}, {.seed = 11, .step = 0, .micro_batch = m}).at(0);
    (loss_of(out, y.narrow(0, 2 * m, 2)) / 3).backward();
  }
  const NamedTensors shapes = plain.named_parameters();
  at_each_level(
      3, [] { return make_net(0.5); }, {.seed = 11},
      [&](World& world, Sharded& sharded, const nn::Layers&) {
        sharded.backward(loss_of(sharded.forward(part(x, world)), part(y, world)));
        EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)), 1e-14);
      });
}

TEST(ShardedLayers, RaggedPartsAreWeighted) {
  const at::Tensor x = rows(7, 6, 1), y = rows(7, 6, 2);
  nn::Layers plain = make_net();
  loss_of(plain.forward(x), y).backward();
  const NamedTensors shapes = plain.named_parameters();
  at_each_level(
      3, [] { return make_net(); }, {},
      [&](World& world, Sharded& sharded, const nn::Layers&) {
        // In the second step the last rank has none.
        const std::int64_t counts[][3] = {{3, 3, 1}, {4, 3, 0}, {0, 6, 1}};
        for (const auto& count : counts) {
          sharded.zero_grad();
          std::int64_t begin = 0;
          for (int rank = 0; rank < world.rank(); ++rank) begin += count[rank];
          const std::int64_t own = count[world.rank()];
          if (own == 0) {
            sharded.backward_without_samples();
          } else {
            sharded.backward(
                loss_of(sharded.forward(x.narrow(0, begin, own)), y.narrow(0, begin, own)),
                static_cast<double>(own));
          }
          EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)),
                    1e-14);
        }
      });
}

TEST(ShardedLayers, NoSyncAddsUpUntilABackwardOutside) {
  const at::Tensor x = rows(12, 6, 1), y = rows(12, 6, 2);
  nn::Layers plain = make_net();
  loss_of(plain.forward(x), y).backward();
  const NamedTensors shapes = plain.named_parameters();
  at_each_level(
      2, [] { return make_net(); }, {},
      [&](World& world, Sharded& sharded, const nn::Layers&) {
        const at::Tensor own_x = part(x, world), own_y = part(y, world);
        for (int step = 0; step < 2; ++step) {
          sharded.zero_grad();
          for (int micro = 0; micro < 3; ++micro) {
            std::optional<Sharded::NoSync> no_sync;
            if (micro < 2) no_sync.emplace(sharded.no_sync());
            const at::Tensor out = sharded.forward(own_x.narrow(0, 2 * micro, 2));
            sharded.backward(loss_of(out, own_y.narrow(0, 2 * micro, 2)) / 3);
          }
          EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)),
                    1e-14);
        }
      });
}

// Without zero_grad() reduced gradients add up, as a plain model's do.
TEST(ShardedLayers, ReducedGradientsAddUp) {
  const at::Tensor x = rows(4, 6, 1), y = rows(4, 6, 2);
  nn::Layers plain = make_net();
  for (int i = 0; i < 3; ++i) loss_of(plain.forward(x), y).backward();
  const NamedTensors shapes = plain.named_parameters();
  at_each_level(
      2, [] { return make_net(); }, {},
      [&](World& world, Sharded& sharded, const nn::Layers&) {
        for (int i = 0; i < 3; ++i)
          sharded.backward(loss_of(sharded.forward(part(x, world)), part(y, world)));
        EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)), 1e-13);
      });
}

TEST(ShardedLayers, FrozenLayers) {
  const auto frozen = [] {
    nn::Layers net = make_net();
    for (auto& [name, tensor] : net.named_parameters())
      if (name.starts_with("middle") || name == "join.fc.weight") tensor.set_requires_grad(false);
    return net;
  };
  const at::Tensor x = rows(4, 6, 1), y = rows(4, 6, 2);
  nn::Layers plain = frozen();
  loss_of(plain.forward(x), y).backward();
  NamedTensors shapes;
  for (const auto& named : plain.named_parameters())
    if (named.second.requires_grad()) shapes.push_back(named);
  at_each_level(2, frozen, {}, [&](World& world, Sharded& sharded, const nn::Layers&) {
    for (int step = 0; step < 2; ++step) {
      sharded.zero_grad();
      sharded.backward(loss_of(sharded.forward(part(x, world)), part(y, world)));
      EXPECT_EQ(sharded.named_parameters().size(), shapes.size());
      EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)), 1e-14);
    }
  });
}

TEST(ShardedLayers, TwoForwardsThenTheirBackwards) {
  const at::Tensor x = rows(4, 6, 1), y = rows(4, 6, 2);
  nn::Layers plain = make_net();
  (loss_of(plain.forward(x), y) + loss_of(plain.forward(x * 2), y)).backward();
  const NamedTensors shapes = plain.named_parameters();
  at_each_level(
      2, [] { return make_net(); }, {},
      [&](World& world, Sharded& sharded, const nn::Layers&) {
        const at::Tensor a = loss_of(sharded.forward(part(x, world)), part(y, world));
        const at::Tensor b = loss_of(sharded.forward(part(x, world) * 2), part(y, world));
        sharded.backward(a + b);
        EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)), 1e-14);
      });
}

TEST(ShardedLayers, ParametersAreLetGoOutsideOfWhatUsesThem) {
  spawn(2, [](World& world) {
    const DeviceMesh mesh(world, {{"shard", 2}});
    const nn::Layers net = make_net();
    Sharded sharded(net, mesh, {.level = ShardLevel::Parameters});
    const auto inside = [&] { return net.named_parameters()[0].second; };
    const auto* const object = inside().unsafeGetTensorImpl();
    EXPECT_EQ(inside().sizes(), (std::vector<std::int64_t>{6, 6}));
    EXPECT_THROW(inside().sum(), c10::Error);
    sharded.backward(sharded.forward(rows(2, 6, 1)).sum());
    EXPECT_THROW(inside().sum(), c10::Error);
    EXPECT_EQ(inside().unsafeGetTensorImpl(), object);
    {
      const auto whole = sharded.unshard();
      EXPECT_TRUE(inside().equal(make_net().named_parameters()[0].second));
    }
    EXPECT_THROW(inside().sum(), c10::Error);
    {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(sharded.forward(rows(2, 6, 1)).allclose(make_net().forward(rows(2, 6, 1))));
    }
    EXPECT_THROW(inside().sum(), c10::Error);
  });
}

TEST(ShardedLayers, AStateOfOneLevelLoadsAtAnother) {
  for (const ShardLevel from : levels) {
    NamedTensors saved;
    spawn(2, [&](World& world) {
      const DeviceMesh mesh(world, {{"shard", 2}});
      Sharded sharded(make_net(), mesh, {.level = from});
      for (auto& tensor : sharded.parameters()) {
        const at::NoGradGuard no_grad;
        tensor.add_(1.25);
      }
      sharded.shards_changed();
      auto state = sharded.state();
      if (world.rank() == 0) saved = state;
    });
    nn::Layers plain = make_net();
    for (const auto& [name, tensor] : plain.named_parameters())
      EXPECT_TRUE(Gradients(saved.begin(), saved.end()).at(name).equal(tensor + 1.25)) << name;
    at_each_level(
        3, [] { return make_net(); }, {},
        [&](World&, Sharded& sharded, const nn::Layers&) {
          sharded.load_state(saved);
          for (const auto& [name, tensor] : sharded.state())
            EXPECT_TRUE(Gradients(saved.begin(), saved.end()).at(name).equal(tensor)) << name;
          const at::NoGradGuard no_grad;
          EXPECT_TRUE(sharded.forward(rows(2, 6, 1)).isfinite().all().item<bool>());
        });
  }
}

TEST(ShardedLayers, UnusedParametersAreNamedOrFound) {
  const auto with_spare = [] {
    nn::Layers net = make_net();
    auto spare = std::make_shared<JoinImpl>();
    spare->to(torch::kDouble);
    spare->register_parameter("spare", at::ones({3}, at::kDouble));
    net.add("last", spare).take("s");
    return net;
  };
  for (const ShardLevel level : levels) {
    SCOPED_TRACE(std::string(to_string(level)));
    try {
      spawn(2, [&](World& world) {
        const DeviceMesh mesh(world, {{"shard", 2}});
        Sharded sharded(with_spare(), mesh, {.level = level, .broadcast_at_start = true});
        sharded.backward(sharded.forward(rows(2, 6, 1)).sum());
      });
      ADD_FAILURE() << "no error";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("no gradient came for parameter 'last.spare'"));
    }
    spawn(2, [&](World& world) {
      const DeviceMesh mesh(world, {{"shard", 2}});
      Sharded sharded(with_spare(), mesh,
                      {.level = level, .unused_parameters = UnusedParameters::Find});
      for (int step = 0; step < 2; ++step) {
        sharded.backward(sharded.forward(rows(2, 6, 1)).sum());
        for (const auto& [name, tensor] : sharded.named_parameters())
          EXPECT_EQ(tensor.grad().defined(), name != "last.spare") << name;
      }
    });
  }
}

TEST(ShardedLayers, RanksWithDifferentModelsAreTold) {
  try {
    spawn(3, [](World& world) {
      const DeviceMesh mesh(world, {{"shard", 3}});
      nn::Layers net;
      net.add("a", torch::nn::Linear(4, world.rank() == 2 ? 5 : 4));
      Sharded sharded(net, mesh, {});
    });
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("parameter 'a.weight' is [4, 4] Float on rank 0 and [5, 4] Float on rank 2"));
  }
}

TEST(ShardedLayers, AMeshWithoutTheDimensionIsRefused) {
  spawn(2, [](World& world) {
    const DeviceMesh mesh(world, {{"replicate", 2}});
    EXPECT_THROW(Sharded(make_net(), mesh, {.level = ShardLevel::Gradients}), UsageError);
    const DeviceMesh other(world, {{"data", 2}});
    EXPECT_THROW(Sharded(make_net(), other, {}), UsageError);
  });
}

// A graph of before a step is refused afterwards, as by a plain model, instead of using the new weights.
TEST(ShardedLayers, ABackwardThroughOldWeightsIsRefused) {
  at_each_level(
      2, [] { return make_net(); }, {},
      [&](World& world, Sharded& sharded, const nn::Layers&) {
        const at::Tensor old = sharded.forward(rows(2, 6, 1)).sum();
        old.backward({}, /*retain_graph=*/true);
        {
          const at::NoGradGuard no_grad;
          for (at::Tensor& parameter : sharded.parameters()) parameter.sub_(0.1);
        }
        EXPECT_ANY_THROW(sharded.backward(old));
        (void)world;
      });
}

}  // namespace
}  // namespace trestle
