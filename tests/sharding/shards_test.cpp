// Which storage exists between steps, and which requests are refused.
#include <gmock/gmock.h>

#include "tests/sharding/layered_net.h"
#include "trestle/base/error.h"

namespace trestle::testing {
namespace {

using ::testing::HasSubstr;

TEST(ShardedLayers, FreeParametersOutsideUnitsThatUseThem) {
  spawn(2, [](World& world) {
    const DeviceMesh mesh(world, {{"shard", 2}});
    const nn::Layers net = make_layered_net();
    Sharded sharded(net, mesh, {.level = ShardLevel::Parameters});
    const auto inside = [&] { return net.named_parameters()[0].second; };
    const auto* const object = inside().unsafeGetTensorImpl();
    EXPECT_EQ(inside().sizes(), (std::vector<std::int64_t>{6, 6}));
    EXPECT_THROW(inside().sum(), c10::Error);
    sharded.backward(sharded.forward(rows(2, 1)).sum());
    EXPECT_THROW(inside().sum(), c10::Error);
    EXPECT_EQ(inside().unsafeGetTensorImpl(), object);
    {
      const auto whole = sharded.unshard();
      EXPECT_TRUE(inside().equal(make_layered_net().named_parameters()[0].second));
    }
    EXPECT_THROW(inside().sum(), c10::Error);
    {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(sharded.forward(rows(2, 1)).allclose(make_layered_net().forward(rows(2, 1))));
    }
    EXPECT_THROW(inside().sum(), c10::Error);
  });
}

TEST(ShardedLayers, LoadStateOfAnotherLevel) {
  for (const ShardLevel from : levels) {
    NamedTensors saved;
    spawn(2, [&](World& world) {
      const DeviceMesh mesh(world, {{"shard", 2}});
      Sharded sharded(make_layered_net(), mesh, {.level = from});
      for (auto& tensor : sharded.parameters()) {
        const at::NoGradGuard no_grad;
        tensor.add_(1.25);
      }
      sharded.shards_changed();
      auto state = sharded.state();
      if (world.rank() == 0) saved = state;
    });
    nn::Layers plain = make_layered_net();
    for (const auto& [name, tensor] : plain.named_parameters())
      EXPECT_TRUE(Gradients(saved.begin(), saved.end()).at(name).equal(tensor + 1.25)) << name;
    at_each_level(
        3, [] { return make_layered_net(); }, {},
        [&](World&, Sharded& sharded, const nn::Layers&) {
          sharded.load_state(saved);
          for (const auto& [name, tensor] : sharded.state())
            EXPECT_TRUE(Gradients(saved.begin(), saved.end()).at(name).equal(tensor)) << name;
          const at::NoGradGuard no_grad;
          EXPECT_TRUE(sharded.forward(rows(2, 1)).isfinite().all().item<bool>());
        });
  }
}

TEST(ShardedLayers, NameOrFindUnusedParameters) {
  const auto with_spare = [] {
    nn::Layers net = make_layered_net();
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
        Sharded sharded(with_spare(), mesh, {.level = level, .broadcast = {.at_start = true}});
        sharded.backward(sharded.forward(rows(2, 1)).sum());
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
        sharded.backward(sharded.forward(rows(2, 1)).sum());
        for (const auto& [name, tensor] : sharded.named_parameters())
          EXPECT_EQ(tensor.grad().defined(), name != "last.spare") << name;
      }
    });
  }
}

TEST(ShardedLayers, RefuseDifferentModelsPerRank) {
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

TEST(ShardedLayers, RefuseMeshWithoutDimension) {
  spawn(2, [](World& world) {
    const DeviceMesh mesh(world, {{"replicate", 2}});
    EXPECT_THROW(Sharded(make_layered_net(), mesh, {.level = ShardLevel::Gradients}), UsageError);
    const DeviceMesh other(world, {{"data", 2}});
    EXPECT_THROW(Sharded(make_layered_net(), other, {}), UsageError);
  });
}

TEST(ShardedLayers, RefuseBackwardThroughOldWeights) {
  at_each_level(
      2, [] { return make_layered_net(); }, {},
      [&](World& world, Sharded& sharded, const nn::Layers&) {
        const at::Tensor old = sharded.forward(rows(2, 1)).sum();
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
}  // namespace trestle::testing
