// The message of a collective that one rank never reaches says what the collective was for.
#include <gmock/gmock.h>

#include <functional>
#include <future>

#include "tests/sharding/plain_net.h"
#include "tests/support/message_of.h"
#include "tests/support/run_ranks.h"
#include "trestle/sync_batch_norm/sync_batch_norm.h"

namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Rank 0's message. `action` calls its second argument where rank 1 stops.
std::string message_of_rank_0(
    const std::function<void(World&, const std::function<void()>&)>& action) {
  struct Stopped {};
  std::promise<void> failed;
  std::string message;
  testing::run_ranks(
      2,
      [&](World& world) {
        if (world.rank() == 0) {
          message = support::message_of<std::exception>([&] { action(world, [] {}); });
          failed.set_value();
          return;
        }
        try {
          // An error before rank 0 has failed would reach it in place of its own.
          action(world, [&] {
            failed.get_future().wait();
            throw Stopped();
          });
        } catch (const Stopped&) {
        }
      },
      std::chrono::milliseconds(400));
  return message;
}

TEST(LateRank, ComparisonsSayWhatIsCompared) {
  EXPECT_THAT(message_of_rank_0([](World& world, const auto& rank_1_stops) {
                const DeviceMesh mesh(world, {{"replicate", 2}});
                rank_1_stops();
                const Sharded sharded(testing::make_plain_net(), mesh, {});
              }),
              HasSubstr("while the ranks compared their options of sharding"));
}

// Rank 1 stops within its backward, after the ranks have compared their calls.
TEST(LateRank, ReductionNamesParameters) {
  EXPECT_THAT(message_of_rank_0([](World& world, const auto& rank_1_stops) {
                const DeviceMesh mesh(world, {{"replicate", 2}});
                ShardedModule<testing::NetImpl> sharded(testing::make_plain_net(), mesh, {});
                const at::Tensor y = sharded.forward(testing::images(0));
                y.register_hook([&](const at::Tensor& gradient) {
                  rank_1_stops();
                  return gradient;
                });
                sharded.backward(y.sum());
              }),
              AllOf(HasSubstr("in the reduction of the gradients of '"), HasSubstr("b.bias'")));
}

TEST(LateRank, BatchNormNamesItsChannels) {
  const auto stops_in = [](bool backward) {
    return message_of_rank_0([=](World& world, const auto& rank_1_stops) {
      SyncBatchNorm norm(torch::nn::BatchNormOptions(6), world.group());
      norm(torch::ones({2, 6, 3}));  // compares the options of the ranks
      if (!backward) rank_1_stops();
      const at::Tensor y = norm(torch::ones({2, 6, 3}).requires_grad_());
      rank_1_stops();
      y.sum().backward();
    });
  };
  EXPECT_THAT(stops_in(false),
              HasSubstr("while the ranks gathered the statistics of a batch norm of 6 channels"));
  EXPECT_THAT(stops_in(true),
              HasSubstr("while the ranks summed the gradients of a batch norm of 6 channels"));
}

}  // namespace
}  // namespace trestle
