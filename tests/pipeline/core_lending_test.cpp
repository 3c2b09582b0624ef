// Stages use the cores of idle stages: equal gradients, equal bits on each run, and thread counts
// restored.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <thread>

#include "tests/pipeline/small_nets.h"
#include "tests/pipeline/support.h"
#include "trestle/device/threads.h"
#include "trestle/nn/loss.h"

namespace trestle {
namespace {

using support::distance;

std::vector<at::Tensor> gradients(CoreLending lending, int runs = 1) {
  auto net = support::chain(4, small::width);
  Pipeline pipeline(net, {.devices = virtual_devices(2),
                          .balance = {3, 4},
                          .micro_batches = 4,
                          .cores = {.threads = 1, .lending = lending}});
  for (int run = 0; run < runs; ++run) {
    pipeline.zero_grad();
    pipeline.step(small::input(), small::target(), nn::cross_entropy());
  }
  return small::gradients_of(net);
}

TEST(CoreLending, GivesSameGradientsAsWithout) {
  small::expect_equal(gradients(CoreLending::Off), gradients(CoreLending::On));
}

TEST(CoreLending, GivesSameBitsOnEachRun) {
  const auto first = gradients(CoreLending::On);
  for (int again = 0; again < 3; ++again) {
    const auto other = gradients(CoreLending::On, 2);
    for (std::size_t i = 0; i < first.size(); ++i)
      EXPECT_TRUE(torch::equal(first[i], other[i])) << "parameter " << i;
  }
}

// The thread counts of operators in the forward and, on the device's own thread, in the backward.
struct Seen {
  std::mutex mutex;
  std::vector<int> forward, backward;
};

struct AskThreads : torch::autograd::Function<AskThreads> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            Seen* seen) {
    context->saved_data["seen"] = reinterpret_cast<std::int64_t>(seen);
    const at::Tensor y = x + 1;  // the thread count takes effect when an operator runs
    const std::lock_guard lock(seen->mutex);
    seen->forward.push_back(at::get_num_threads());
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* seen = reinterpret_cast<Seen*>(context->saved_data["seen"].toInt());
    const at::Tensor gradient = gradients[0] * 1;
    const std::lock_guard lock(seen->mutex);
    seen->backward.push_back(at::get_num_threads());
    return {gradient, at::Tensor()};
  }
};

TEST(CoreLending, ReachesForwardAndBackward) {
  Seen first, last;
  nn::Layers net;
  net.add("first", [&](at::Tensor x) { return AskThreads::apply(x, &first); });
  net.add("linear", small::linear(1));
  net.add("last", [&](at::Tensor x) { return AskThreads::apply(x, &last); });
  Pipeline pipeline(net, {.devices = virtual_devices(2),
                          .balance = {1, 2},
                          .micro_batches = 2,
                          .cores = {.threads = 1, .lending = CoreLending::On}});
  const at::Tensor x = small::input().requires_grad_();
  pipeline.forward(x * 1).sum().backward();  // gives the first layer a backward
  const int all = core_count();
  EXPECT_EQ(first.forward, (std::vector<int>{all, 1}));
  EXPECT_EQ(first.backward, (std::vector<int>{1, all}));
  // The last stage's second forward and first backward run while the other stage is idle.
  EXPECT_EQ(last.forward.back(), all);
  EXPECT_EQ(last.backward, (std::vector<int>{all, 1}));
}

// A rank that shares the machine's cores with others has its own number.
TEST(StageThreads, AreThoseOfTheThreadThatMakesThePipeline) {
  Seen seen;
  std::thread([&] {
    set_own_threads(1);
    nn::Layers net;
    net.add("ask", [&](at::Tensor x) { return AskThreads::apply(x, &seen); });
    Pipeline pipeline(net, {.devices = virtual_devices(1), .balance = {1}, .micro_batches = 2});
    pipeline.forward(small::input());
  }).join();
  EXPECT_EQ(seen.forward, (std::vector<int>{1, 1}));
}

// A lent count must not become libtorch's default for threads that start later.
TEST(CoreLending, LeavesThreadCountOfOtherThreads) {
  const auto in_a_new_thread = [] {
    int number = 0;
    std::thread([&] { number = at::get_num_threads(); }).join();
    return number;
  };
  const int caller = at::get_num_threads(), fresh = in_a_new_thread();
  auto net = support::chain(4, small::width);
  Pipeline pipeline(net, {.devices = virtual_devices(2),
                          .balance = {3, 4},
                          .micro_batches = 4,
                          .cores = {.threads = 1, .lending = CoreLending::On}});
  const int workers_own = in_a_new_thread();  // a pipeline's workers set their count explicitly
  for (int step = 0; step < 3; ++step) {
    pipeline.step(small::input(), small::target(), nn::cross_entropy());
    EXPECT_EQ(at::get_num_threads(), caller);
    EXPECT_EQ(in_a_new_thread(), workers_own) << "was " << fresh << " before the pipeline";
  }
}

TEST(CoreLending, IsOffWhenRanksShareDevice) {
  const auto device = virtual_devices(1)[0];
  Pipeline pipeline(support::chain(4), {.devices = {device, device},
                                        .balance = {3, 4},
                                        .micro_batches = 2,
                                        .cores = {.threads = 1, .lending = CoreLending::On}});
  const auto table = pipeline.schedule();
  for (const auto& rank : table.ranks)
    for (const auto& action : rank) EXPECT_EQ(action.threads, 0);
}

TEST(CoreLending, ProfileMeasuresItsSpeedUp) {
  Pipeline pipeline(support::chain(4), {.devices = virtual_devices(2),
                                        .balance = {3, 4},
                                        .micro_batches = 2,
                                        .cores = {.threads = 1, .lending = CoreLending::On}});
  const auto costs = pipeline.profile({small::input()}, small::target(), nn::cross_entropy());
  for (const auto& stage : costs.stages) EXPECT_GT(stage.lent_speed_up, 0);
}

TEST(DeviceThreads, OverlappingScopesRestoreThreadCount) {
  const at::Tensor x = torch::ones({2}, at::Device("virtual:2"));
  EXPECT_EQ((x + 1).numel(), 2);
  const int before = at::get_num_threads();
  auto first = std::make_unique<DeviceThreads>(x.device(), before + 1);
  auto second = std::make_unique<DeviceThreads>(x.device(), before + 2);
  first.reset();
  second.reset();
  EXPECT_EQ((x + 1).numel(), 2);
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(DeviceThreads, ApplyToOneDeviceAndAreRestored) {
  const at::Tensor x = torch::ones({2}, at::Device("virtual:1"));
  const int before = at::get_num_threads();
  {
    const DeviceThreads threads(x.device(), before + 1);
    EXPECT_EQ((x + 1).numel(), 2);
    EXPECT_EQ(at::get_num_threads(), before + 1);
    EXPECT_EQ((torch::ones({2}, at::Device("virtual:0")) + 1).numel(), 2);
    EXPECT_EQ(at::get_num_threads(), before) << "another device has its own thread count";
  }
  EXPECT_EQ((x + 1).numel(), 2);
  EXPECT_EQ(at::get_num_threads(), before);
}

}  // namespace
}  // namespace trestle
