#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/support/device_of_rank.h"
#include "tests/support/message_of.h"
#include "tests/support/run_ranks.h"
#include "trestle/models/unet.h"
#include "trestle/sync_batch_norm/sync_batch_norm.h"

// Converts the batch norms of models that were written for one process.
namespace trestle::sync_batch_norm {
namespace {

using support::message_of;
using ::testing::HasSubstr;
using testing::run_ranks;

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : body(register_module(
            "body", torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4)))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))) {}
  at::Tensor forward(const at::Tensor& x) { return norm(torch::relu(body->forward(x))); }
  torch::nn::Sequential body;
  torch::nn::BatchNorm1d norm;
};

bool same_on_all(World& world, const at::Tensor& tensor) {
  for (const at::Tensor& each : world.group().all_gather_uneven(tensor.contiguous()))
    if (!each.equal(tensor)) return false;
  return true;
}

TEST(ConvertSyncBatchNorm, NormalizesOverAllRanksInMembersAndSequentials) {
  run_ranks(2, [](World& world) {
    const auto block = std::make_shared<BlockImpl>();
    const auto before = block->parameters();
    EXPECT_EQ(convert_sync_batch_norm(block, world.group()), 2U);
    for (std::size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(block->parameters()[i].is_same(before[i]));
    block->to(testing::device_of_rank(world.rank()));
    block->to(at::kDouble);
    at::Tensor x =
        torch::full({2, 3}, 1.0 + world.rank(), at::kDouble).to(block->norm->weight.device());
    x = x + torch::arange(2, x.options()).view({2, 1});
    block->forward(x).sum().backward();
    EXPECT_EQ(block->norm->num_batches_tracked.item<int>(), 1);
    EXPECT_TRUE(same_on_all(world, block->norm->running_mean));
    EXPECT_TRUE(same_on_all(world, block->norm->running_var));
    EXPECT_FALSE(same_on_all(world, x));
    {
      const c10::InferenceMode inference;  // InferenceMode bypasses autograd
      block->forward(x * 2);
    }
    EXPECT_TRUE(same_on_all(world, block->norm->running_mean));
    // Other modules' batch norms, and those over a group of one rank, behave as torch's.
    torch::nn::BatchNorm1d other(4);
    torch::nn::BatchNorm1d alone(4);
    const comm::Group one = world.make_group({0}), two = world.make_group({1});
    EXPECT_EQ(convert_sync_batch_norm(alone.ptr(), world.group()), 1U);
    EXPECT_EQ(convert_sync_batch_norm(alone.ptr(), world.rank() == 0 ? one : two), 1U);
    const at::Tensor y = torch::arange(8.0).view({2, 4}) + world.rank();
    EXPECT_TRUE(other(y).equal(alone(y)));
    EXPECT_FALSE(same_on_all(world, alone->running_mean));
    block->eval();
    if (world.rank() == 0) block->forward(x);  // the other rank does not take part
  });
}

// A model of the library, written for one process: the gradients' sum over ranks equals the plain
// model's gradient over all samples.
TEST(ConvertSyncBatchNorm, UnetOverRanksHasWholeBatchGradients) {
  const auto make = [] {
    nn::Layers net = models::unet({.width = 2});
    for (const auto& layer : net.graph().layers)
      if (layer.module) layer.module->to(at::kDouble);
    return net;
  };
  torch::manual_seed(7);
  const at::Tensor images = torch::randn({4, 3, 32, 32}, at::kDouble);
  const nn::Layers plain = make();
  plain.forward(images).square().sum().backward();
  run_ranks(3, [&](World& world) {
    const nn::Layers net = make();
    EXPECT_GT(convert_sync_batch_norm(net, world.group()), 8U);
    const std::vector<std::int64_t> first = {0, 2, 3}, count = {2, 1, 1};
    const auto r = static_cast<std::size_t>(world.rank());
    net.forward(images.narrow(0, first[r], count[r])).square().sum().backward();
    for (std::size_t i = 0; i < plain.parameters().size(); ++i) {
      at::Tensor sum = net.parameters()[i].grad().clone();
      world.group().all_reduce(sum).wait();
      const at::Tensor& expected = plain.parameters()[i].grad();
      EXPECT_LT((sum - expected).abs().max().item<double>(),
                1e-8 * std::max(1.0, expected.abs().max().item<double>()))
          << plain.named_parameters()[i].first;
    }
    const auto buffers = plain.named_buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i)
      EXPECT_TRUE(at::allclose(buffers[i].second, net.named_buffers()[i].second, 1e-9, 1e-9));
  });
}

TEST(ConvertSyncBatchNorm, RefusesAmbiguousModulesAndChangesNothing) {
  run_ranks(2, [](World& world) {
    struct BothImpl : torch::nn::Module {
      BothImpl() {
        register_module("block", block);
        register_module("without", without);
      }
      std::shared_ptr<BlockImpl> block = std::make_shared<BlockImpl>();
      torch::nn::BatchNorm2d without{torch::nn::BatchNormOptions(2).track_running_stats(false)};
    };
    const auto both = std::make_shared<BothImpl>();
    EXPECT_THAT(message_of<std::exception>([&] { convert_sync_batch_norm(both, world.group()); }),
                HasSubstr("cannot be converted: 'without'"));
    both->block->forward(torch::randn({3 + world.rank(), 3}));
    if (world.rank() == 0) both->block->forward(torch::randn({3, 3}));  // not converted
    const auto other = std::make_shared<BlockImpl>();
    EXPECT_THAT(message_of<std::exception>([&] { convert_sync_batch_norm(other, comm::Group()); }),
                HasSubstr("needs a group"));
    convert_sync_batch_norm(other, world.group());
    EXPECT_THAT(message_of<std::exception>([&] {
                  other->to(at::Device("virtual:0"));
                  other->forward(torch::randn({3, 3}, at::Device("virtual:0")));
                }),
                HasSubstr("rank 0 and rank 1 are both on virtual:0"));
  });
}

}  // namespace
}  // namespace trestle::sync_batch_norm
