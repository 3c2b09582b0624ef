// nn::Layers over ranks at every level: units, skips, ties, frozen layers, dropout, several
// forwards.
#include <gtest/gtest.h>

#include "tests/sharding/layered_net.h"
#include "trestle/base/error.h"
#include "trestle/nn/graph.h"
#include "trestle/sync_batch_norm/sync_batch_norm.h"

namespace trestle::testing {
namespace {

TEST(ShardedLayers, HavePlainModelsGradients) {
  const at::Tensor x = rows(12, 1), y = rows(12, 2);
  nn::Layers plain = make_layered_net();
  loss_of(plain.forward(x), y).backward();
  const NamedTensors shapes = plain.named_parameters();
  for (const int ranks : {1, 2, 3})
    at_each_level(
        ranks, [] { return make_layered_net(); }, {},
        [&](World& world, Sharded& sharded, const nn::Layers&) {
          for (int step = 0; step < 3; ++step) {  // the first step determines buckets and order
            sharded.zero_grad();
            loss_of(sharded.forward(part(x, world)), part(y, world)).backward();
            EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)),
                      1e-14);
          }
        });
}

TEST(ShardedLayers, TrainInUnitsOfSeveralLayersAndWithoutReshard) {
  const at::Tensor x = rows(4, 1), y = rows(4, 2);
  nn::Layers plain = make_layered_net();
  loss_of(plain.forward(x), y).backward();
  const NamedTensors shapes = plain.named_parameters();
  for (const Bytes unit : {Bytes{0}, Bytes{500}, Bytes{1} << 20}) {
    for (const bool reshard : {true, false}) {
      spawn(2, [&](World& world) {
        const DeviceMesh mesh(world, {{"shard", 2}});
        Sharded sharded(make_layered_net(), mesh,
                        {.level = ShardLevel::Parameters,
                         .reshard_after_forward = reshard,
                         .units = {.bytes = unit}});
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

// Replicas draw the numbers of the plain model's micro-batches.
TEST(ShardedLayers, DrawDropoutOfGlobalMicroBatch) {
  const at::Tensor x = rows(6, 1), y = rows(6, 2);
  nn::Layers plain = make_layered_net(0.5);
  const nn::Graph graph = plain.graph();
  for (std::int64_t m = 0; m < 3; ++m) {
    const at::Tensor out =
        nn::run(graph, {x.narrow(0, 2 * m, 2)}, {.seed = 11, .step = 0, .micro_batch = m}).at(0);
    (loss_of(out, y.narrow(0, 2 * m, 2)) / 3).backward();
  }
  const NamedTensors shapes = plain.named_parameters();
  at_each_level(
      3, [] { return make_layered_net(0.5); }, {.seed = 11},
      [&](World& world, Sharded& sharded, const nn::Layers&) {
        sharded.backward(loss_of(sharded.forward(part(x, world)), part(y, world)));
        EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)), 1e-14);
      });
}

TEST(ShardedLayers, WeightRaggedBatches) {
  const at::Tensor x = rows(7, 1), y = rows(7, 2);
  nn::Layers plain = make_layered_net();
  loss_of(plain.forward(x), y).backward();
  const NamedTensors shapes = plain.named_parameters();
  at_each_level(
      3, [] { return make_layered_net(); }, {},
      [&](World& world, Sharded& sharded, const nn::Layers&) {
        // Rank 0 has no samples in the first step, rank 2 none in the third.
        const std::int64_t counts[][3] = {{0, 6, 1}, {3, 3, 1}, {4, 3, 0}, {0, 6, 1}};
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

TEST(ShardedLayers, NoSyncAccumulatesUntilBackwardOutside) {
  const at::Tensor x = rows(12, 1), y = rows(12, 2);
  nn::Layers plain = make_layered_net();
  loss_of(plain.forward(x), y).backward();
  const NamedTensors shapes = plain.named_parameters();
  at_each_level(
      2, [] { return make_layered_net(); }, {},
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

// Without zero_grad(), reduced gradients accumulate as in a plain model.
TEST(ShardedLayers, AccumulateReducedGradients) {
  const at::Tensor x = rows(4, 1), y = rows(4, 2);
  nn::Layers plain = make_layered_net();
  for (int i = 0; i < 3; ++i) loss_of(plain.forward(x), y).backward();
  const NamedTensors shapes = plain.named_parameters();
  at_each_level(
      2, [] { return make_layered_net(); }, {},
      [&](World& world, Sharded& sharded, const nn::Layers&) {
        for (int i = 0; i < 3; ++i)
          sharded.backward(loss_of(sharded.forward(part(x, world)), part(y, world)));
        EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)), 1e-13);
      });
}

TEST(ShardedLayers, SupportFrozenLayers) {
  const auto frozen = [] {
    nn::Layers net = make_layered_net();
    for (auto& [name, tensor] : net.named_parameters())
      if (name.starts_with("middle") || name == "join.fc.weight") tensor.set_requires_grad(false);
    return net;
  };
  const at::Tensor x = rows(4, 1), y = rows(4, 2);
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

TEST(ShardedLayers, RunTwoForwardsBeforeTheirBackwards) {
  const at::Tensor x = rows(4, 1), y = rows(4, 2);
  nn::Layers plain = make_layered_net();
  (loss_of(plain.forward(x), y) + loss_of(plain.forward(x * 2), y)).backward();
  const NamedTensors shapes = plain.named_parameters();
  at_each_level(
      2, [] { return make_layered_net(); }, {},
      [&](World& world, Sharded& sharded, const nn::Layers&) {
        const at::Tensor a = loss_of(sharded.forward(part(x, world)), part(y, world));
        const at::Tensor b = loss_of(sharded.forward(part(x, world) * 2), part(y, world));
        sharded.backward(a + b);
        EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)), 1e-14);
      });
}

// SyncBatchNorm waits for every rank: backward_without_samples() is refused, an empty batch is
// accepted.
TEST(ShardedLayers, SyncBatchNormTakesEmptyBatchFromRankWithoutSamples) {
  const at::Tensor x = rows(5, 1), y = rows(5, 2);
  const auto net_with = [](const auto& norm) {
    nn::Layers net(nn::Seed{4});
    for (const char* name : {"first", "last"})
      net.add(name, [] {
        torch::nn::Linear linear(6, 6);
        linear->to(torch::kDouble);
        return linear;
      });
    net.add("norm", norm);
    return net;
  };
  const auto options = torch::nn::BatchNormOptions(6);
  nn::Layers plain = net_with([&] {
    const auto norm = std::make_shared<torch::nn::BatchNorm1dImpl>(options);
    norm->to(torch::kDouble);
    return norm;
  });
  loss_of(plain.forward(x), y).backward();
  const NamedTensors shapes = plain.named_parameters();
  for (const ShardLevel level : levels) {
    SCOPED_TRACE(std::string(to_string(level)));
    spawn(2, [&](World& world) {
      const nn::Layers net = net_with([&] {
        const auto norm =
            std::make_shared<sync_batch_norm::SyncBatchNormImpl>(options, world.group());
        norm->to(torch::kDouble);
        return norm;
      });
      Sharded sharded(net, DeviceMesh(world, {{"shard", 2}}), {.level = level});
      EXPECT_THROW(sharded.backward_without_samples(), UsageError);
      for (int step = 0; step < 2; ++step) {
        sharded.zero_grad();
        const std::int64_t own = world.rank() == 0 ? 5 : 0;
        const at::Tensor out = sharded.forward(x.narrow(0, 0, own));
        const at::Tensor loss = (out - y.narrow(0, 0, own)).square();
        sharded.backward(own > 0 ? loss.mean() : loss.sum(), static_cast<double>(own));
        EXPECT_LT(difference(gradients_of(shapes), whole_gradients(sharded, world, shapes)), 1e-14);
      }
    });
  }
}

}  // namespace
}  // namespace trestle::testing
