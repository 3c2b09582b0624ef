// A pipeline's messages beside a program's own, and messages that do not fit into memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/pipeline/over_ranks.h"
#include "tests/pipeline/support.h"
#include "tests/support/virtual_environment.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/pipeline/pipeline.h"

namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The program's receives stay posted from before the first step to after the last, on every tag.
TEST(RanksMessages, LeaveAllTagsToProgram) {
  const support::WatchDog watch("messages beside steps");
  constexpr int tags = 40;
  spawn(2, [](World& world) {
    const comm::Group& group = world.group();
    nn::Layers net(nn::Seed{3});
    net.add("first", [] { return torch::nn::Linear(4, 4); });
    net.add("second", [] { return torch::nn::Linear(4, 4); });
    Pipeline pipeline(net, {.group = group, .balance = {1, 1}, .micro_batches = 2});
    const int other = 1 - world.rank();
    std::vector<at::Tensor> received;
    std::vector<comm::Work> works;
    for (int tag = 0; tag < tags; ++tag) {
      received.push_back(torch::zeros({4096}, at::kByte));
      works.push_back(group.receive(received.back(), other, tag));
    }
    const at::Tensor x = torch::ones({4, 4});
    const double loss = pipeline.step(x, x, nn::mean_squared_error()).loss;
    for (int tag = 0; tag < tags; ++tag)
      works.push_back(group.send(torch::full({4096}, tag, at::kByte), other, tag));
    EXPECT_EQ(pipeline.step(x, x, nn::mean_squared_error()).loss, loss);
    for (auto& work : works) work.wait();
    for (int tag = 0; tag < tags; ++tag)
      EXPECT_TRUE(received[static_cast<std::size_t>(tag)].eq(tag).all().item<bool>()) << tag;
  });
}

TEST(RanksMessages, GrowAndShrinkFromCallToCall) {
  const support::WatchDog watch("messages of changing size");
  spawn(2, support::expect_plain_numbers_for_changing_messages);
}

// A thread reads the message before the action that takes it.
TEST(RanksMessages, ReportOutOfMemoryOnReceiveLikeAnyOther) {
  const support::WatchDog watch("a message too large");
  const auto devices = virtual_devices(4);
  const auto all = spawn(2, [&](World& world) -> std::string {
    nn::Layers net;
    net.add("widen", [](at::Tensor x) { return x.repeat({1, 1 << 18}); });
    net.add("narrow", [](at::Tensor x) { return x.sum(1, true); });
    Device own = devices[static_cast<std::size_t>(world.rank())];
    if (world.rank() == 1) own.budget = 2 << 20;
    Pipeline pipeline(
        net, {.group = world.group(), .devices = {own}, .balance = {1, 1}, .micro_batches = 2});
    try {
      pipeline.evaluate(torch::ones({8, 1}));
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  });
  virtual_devices(4);
  for (const auto& message : all)
    EXPECT_THAT(message, AllOf(HasSubstr("virtual:1 is out of memory in stage 1, micro-batch 0"),
                               HasSubstr("asked 4.0 MiB, 0 B of 2.0 MiB in use")));
}

}  // namespace
}  // namespace trestle
