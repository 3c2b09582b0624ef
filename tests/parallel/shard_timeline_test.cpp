// The records of all ranks in one timeline.
#include "trestle/parallel/shard_timeline.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trestle/comm/threads/spawn.h"
#include "trestle/nn/layers.h"
#include "trestle/sharding/sharded.h"
#include "trestle/view/chrome_trace.h"
#include "trestle/view/svg.h"

namespace trestle {
namespace {

using schedule::Kind;

TEST(ShardTimeline, HasRowsOfAllRanks) {
  for (const ShardLevel level : {ShardLevel::None, ShardLevel::Parameters}) {
    const auto timelines = spawn(2, [&](World& world) {
      nn::Layers net(nn::Seed{1});
      net.add("a", [] { return torch::nn::Linear(8, 8); });
      net.add("b", [] { return torch::nn::Linear(8, 8); });
      Sharded sharded(net, DeviceMesh(world, {{"shard", 2}}), {.level = level});
      sharded.backward(sharded.forward(at::ones({2, 8})).square().mean());
      sharded.start_recording();
      for (int step = 0; step < 2; ++step)
        sharded.backward(sharded.forward(at::ones({2, 8})).square().mean());
      return shard_timeline(sharded.stop_recording(), world.group());
    });
    EXPECT_EQ(timelines[0].events.size(), timelines[1].events.size());
    const auto count = [&](int rank, Kind kind) {
      return std::count_if(
          timelines[0].events.begin(), timelines[0].events.end(),
          [&](const auto& event) { return event.rank == rank && event.action.kind == kind; });
    };
    const int units = level == ShardLevel::Parameters ? 2 : 1;
    for (const int rank : {0, 1}) {
      EXPECT_EQ(count(rank, Kind::Forward), 2 * units);
      EXPECT_EQ(count(rank, Kind::Backward), 2 * units);
      EXPECT_EQ(count(rank, Kind::ReduceGrad), 2 * units);
      // The last unit stays unsharded between its forward and its backward.
      EXPECT_EQ(count(rank, Kind::Unshard) > 0, level == ShardLevel::Parameters);
    }
    EXPECT_EQ(timelines[0].stages, units);
    EXPECT_EQ(timelines[0].micro_batches, 2);
    const auto again = view::from_chrome_trace(view::to_chrome_trace({timelines[0]}));
    EXPECT_EQ(again.at(0).events.size(), timelines[0].events.size());
    EXPECT_NE(view::to_svg({timelines[0]}).find("reduce gradients"), std::string::npos);
  }
}

}  // namespace
}  // namespace trestle
