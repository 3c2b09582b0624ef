// The state that all ranks of a step share: messages, deadlines, cancellation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/pipeline/support.h"
#include "trestle/base/error.h"
#include "trestle/pipeline/transport/local_transport.h"

namespace trestle::pipeline {
namespace {

using namespace std::chrono_literals;
using Way = Transfer::Way;
using support::main_route;
using support::message_of;
using ::testing::HasSubstr;

TEST(LocalTransport, DeadlineNamesWaitingAndAwaitedRank) {
  device::CopyStreams copies;
  LocalTransport channels({main_route(0), {0, 1, true, "s"}}, {0, 1}, 2, 3, 20ms, copies);
  EXPECT_THAT(
      message_of<DeadlineError>([&] {
        channels.receive({0, 1, Way::Activation}, at::kCPU);
      }),
      HasSubstr("rank 1 waited 20 ms for the activations of micro-batch 1 from rank 0, which has "
                "not finished any action yet"));
  channels.finished(1, {.kind = schedule::Kind::Forward, .stage = 1, .micro_batch = 2});
  EXPECT_THAT(
      message_of<DeadlineError>([&] {
        channels.receive({1, 2, Way::Gradient}, at::kCPU);
      }),
      HasSubstr("rank 0 waited 20 ms for the gradient of skip 's' of micro-batch 2 from rank 1, "
                "which last finished 1F2"));
}

TEST(LocalTransport, DeliversEachMessageToItsSlot) {
  device::CopyStreams copies;
  LocalTransport channels({main_route(0)}, {0, 1}, 2, 2, 10s, copies);
  auto message = [](double value) {
    return Message{{.value = torch::tensor(value), .wants_gradient = true}};
  };
  channels.send({0, 1, Way::Activation}, message(1), at::kCPU);
  channels.send({0, 0, Way::Activation}, message(2), at::kCPU);
  channels.send({0, 0, Way::Gradient}, message(3), at::kCPU);
  EXPECT_TRUE(channels.arrived({0, 1, Way::Activation}));
  EXPECT_FALSE(channels.arrived({0, 1, Way::Gradient}));
  auto got = [&](int micro_batch, Way way) {
    return channels.receive({0, micro_batch, way}, at::kCPU)[0].value.item<double>();
  };
  EXPECT_EQ(got(0, Way::Activation), 2);
  EXPECT_EQ(got(1, Way::Activation), 1);
  EXPECT_EQ(got(0, Way::Gradient), 3);
  EXPECT_FALSE(channels.arrived({0, 1, Way::Activation}));
}

TEST(LocalTransport, CancelWakesAllThreadsAndKeepsFirstFailure) {
  const support::WatchDog dog("LocalTransport.cancel");
  device::CopyStreams copies;
  LocalTransport channels({main_route(0), main_route(1)}, {0, 1, 2}, 3, 1, 1h, copies);
  std::atomic<int> cancelled = 0;
  std::vector<std::thread> waiting;
  for (const int route : {0, 1}) {
    waiting.emplace_back([&, route] {
      try {
        channels.receive({route, 0, Way::Activation}, at::kCPU);
      } catch (const Cancelled&) {
        ++cancelled;
      }
    });
  }
  channels.cancel(std::make_exception_ptr(std::runtime_error("first")));
  channels.cancel(std::make_exception_ptr(std::runtime_error("second")));
  for (auto& thread : waiting) thread.join();
  EXPECT_EQ(cancelled, 2);
  EXPECT_EQ(message_of<std::runtime_error>([&] { std::rethrow_exception(channels.failure()); }),
            "first");
  EXPECT_THROW(channels.arrived({0, 0, Way::Activation}), Cancelled);
}

}  // namespace
}  // namespace trestle::pipeline
