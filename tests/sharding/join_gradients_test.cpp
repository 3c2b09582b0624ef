// Gradients from before a backward, where a rank that has no batches left follows.
#include <gmock/gmock.h>

#include "join_nets.h"
#include "trestle/nn/layers.h"
#include "trestle/sharding/join.h"

namespace trestle::testing {
namespace {

// Two reduced backwards add up, of gradients of which the rank that has batches holds nothing, and of which one is let go
// while another one, of a parameter that this optimizer does not have, stays.
TEST(Join, GradientsThatAddUpStayWhereTheRankWithBatchesHasNoPartOfThem) {
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

}  // namespace
}  // namespace trestle::testing
