// Whole steps on devices with streams: work that a GPU would run asynchronously is ordered
// correctly. See device/stream_check.h.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/all_plans.h"
#include "tests/pipeline/small_nets.h"
#include "tests/pipeline/support.h"
#include "trestle/base/stopwatch.h"
#include "trestle/device/stream.h"
#include "trestle/device/stream_check.h"
#include "trestle/device/transfer.h"
#include "trestle/nn/loss.h"

namespace trestle {
namespace {

using support::chain;
using ::testing::IsEmpty;

std::vector<c10::Stream> streams_of_the_callers_own() {
  std::vector<c10::Stream> streams;
  const c10::impl::VirtualGuardImpl guard(at::kPrivateUse1);
  for (at::DeviceIndex i = 0; i < 4; ++i)
    streams.push_back(guard.getStreamFromGlobalPool(at::Device(at::kPrivateUse1, i), false));
  return streams;
}

// Linear layers, batch norm, dropout and a skip over all of them.
nn::Layers net_with_a_skip() {
  torch::manual_seed(3);
  nn::Layers net;
  net.add("first", small::linear(1)).keep_output("skip");
  torch::nn::BatchNorm1d norm(small::width);
  norm->to(at::kDouble);
  net.add("norm", norm);
  net.add("relu", torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)));
  net.add("second", small::linear(2));
  net.add("dropout", torch::nn::Dropout(0.25));
  net.add("add", [](at::Tensor x, at::Tensor skip) { return x + skip; }).take("skip");
  net.add("last", small::linear(3));
  return net;
}

struct OrderedPlan {
  std::string schedule;
  Recompute recompute = Recompute::Never;
  std::vector<int> balance;
};

std::vector<OrderedPlan> ordered_plans() {
  std::vector<OrderedPlan> result;
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    for (const Recompute mode : {Recompute::Never, Recompute::ExceptLast, Recompute::Always}) {
      for (const std::vector<int>& balance : {std::vector<int>{7}, {3, 4}, {1, 2, 2, 2}, {2, 2, 3}})
        result.push_back({schedule, mode, balance});
    }
  }
  return result;
}

std::string text_of(const OrderedPlan& plan) {
  std::string name = plan.schedule + " " + std::string(schedule::to_string(plan.recompute));
  for (const int layers : plan.balance) name += " " + std::to_string(layers);
  return name;
}

Pipeline pipeline_of(const nn::Layers& net, const OrderedPlan& plan) {
  return Pipeline(net, {.devices = virtual_devices(static_cast<int>(plan.balance.size())),
                        .balance = plan.balance,
                        .micro_batches = 4,
                        .schedule = plan.schedule,
                        .recompute = plan.recompute});
}

TEST(StreamOrder, HoldsInStepOfEveryPlan) {
  for (const OrderedPlan& plan : ordered_plans()) {
    SCOPED_TRACE(text_of(plan));
    const StreamCheck check;
    const device::StreamScope own(streams_of_the_callers_own());
    auto pipeline = pipeline_of(net_with_a_skip(), plan);
    torch::optim::SGD optimizer(pipeline.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      pipeline.step(small::input(), small::target(), nn::cross_entropy());
      pipeline.clip_grad_norm(1);
      optimizer.step();
    }
    pipeline.evaluate(small::input());
    EXPECT_THAT(check.findings(), IsEmpty());
  }
}

TEST(StreamOrder, HoldsInCallersBackwardOfEveryPlan) {
  for (const OrderedPlan& plan : ordered_plans()) {
    SCOPED_TRACE(text_of(plan));
    const StreamCheck check;
    const device::StreamScope own(streams_of_the_callers_own());
    auto pipeline = pipeline_of(net_with_a_skip(), plan);
    const at::Tensor x = small::input().to(pipeline.device(0).torch).requires_grad_();
    device::StreamEvent from_the_host, ready;
    from_the_host.record(x.device());
    at::Tensor doubled;
    {
      const device::StreamScope elsewhere(streams_of_the_callers_own());
      from_the_host.wait(x.device());
      doubled = x * 2;
      ready.record(x.device());
    }
    ready.wait(x.device());
    keep_for_current_stream(doubled);
    const at::Tensor y = pipeline.forward(doubled);
    const at::Tensor loss = torch::cross_entropy_loss(y, small::target().to(y.device()));
    {
      const device::StreamScope elsewhere(streams_of_the_callers_own());
      loss.backward();
      EXPECT_GT(x.grad().abs().sum().item<double>(), 0);
      for (const auto& parameter : pipeline.parameters())
        EXPECT_GE(parameter.grad().abs().sum().item<double>(), 0);
    }
    EXPECT_THAT(check.findings(), IsEmpty());
  }
}

// The batch is on one extra device, the target on another.
TEST(StreamOrder, HoldsForInputsFromOtherDevices) {
  const StreamCheck check;
  const device::StreamScope own(streams_of_the_callers_own());
  auto pipeline = pipeline_of(net_with_a_skip(), {"1f1b", Recompute::ExceptLast, {3, 4}});
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = small::input().to(at::Device("virtual:3")) * 2;
    const at::Tensor y = small::target().to(at::Device("virtual:2"));
    pipeline.step(x, y, nn::cross_entropy());
  }
  EXPECT_THAT(check.findings(), IsEmpty());
}

TEST(StreamOrder, HoldsForWholeBatchLoss) {
  const StreamCheck check;
  const device::StreamScope own(streams_of_the_callers_own());
  auto pipeline = pipeline_of(net_with_a_skip(), {"gpipe", Recompute::Never, {3, 4}});
  const auto loss = nn::whole_batch(
      "mean square", [](const at::Tensor& y, const at::Tensor&) { return y.square().mean(); });
  pipeline.step(small::input(), small::target(), loss, {.output = StepOptions::Output::Keep});
  EXPECT_THAT(check.findings(), IsEmpty());
}

TEST(StreamOrder, HoldsInProfileAndMeasuredBalance) {
  const StreamCheck check;
  const device::StreamScope own(streams_of_the_callers_own());
  Pipeline pipeline(net_with_a_skip(),
                    {.devices = virtual_devices(2),
                     .micro_batches = 4,
                     .plan = {.sample = {small::input()}},
                     .numerics = {.batch_norm = nn::BatchNormStatistics::WholeBatch}});
  pipeline.profile({small::input()}, small::target(), nn::cross_entropy());
  pipeline.step(small::input(), small::target(), nn::cross_entropy());
  EXPECT_THAT(check.findings(), IsEmpty());
}

// Two stages on one device, and two pipelines in turns.
TEST(StreamOrder, HoldsOnSharedDevices) {
  const StreamCheck check;
  const device::StreamScope own(streams_of_the_callers_own());
  const auto devices = virtual_devices(2);
  Pipeline first(
      net_with_a_skip(),
      {.devices = {devices[0], devices[1], devices[0]}, .balance = {2, 2, 3}, .micro_batches = 3});
  Pipeline second(chain(4), {.devices = devices, .balance = {3, 4}, .micro_batches = 2});
  for (int step = 0; step < 2; ++step) {
    const at::Tensor middle = first.forward(small::input());
    const at::Tensor end = second.forward(middle);
    end.sum().backward();
  }
  EXPECT_THAT(check.findings(), IsEmpty());
}

// On devices with streams, events give the times, on one clock with the host's.
TEST(StreamOrder, TimelineUsesEventTimes) {
  const StreamCheck check;
  auto pipeline = pipeline_of(net_with_a_skip(), {"1f1b", Recompute::Never, {3, 4}});
  const Stopwatch watch;
  for (int step = 0; step < 2; ++step)
    pipeline.step(small::input(), small::target(), nn::cross_entropy());
  const double took = watch.seconds();
  const schedule::Timeline timeline = pipeline.timeline();
  ASSERT_EQ(timeline.events.size(),
            pipeline.schedule().ranks[0].size() + pipeline.schedule().ranks[1].size());
  std::vector<double> reached(2, 0);
  for (const auto& event : timeline.events) {
    EXPECT_GE(event.begin, reached[event.rank]);
    EXPECT_GT(event.end, event.begin);
    reached[event.rank] = event.end;
  }
  EXPECT_GT(std::min(reached[0], reached[1]), 0);
  EXPECT_LT(std::max(reached[0], reached[1]), took);
  EXPECT_THAT(check.findings(), IsEmpty());
}

}  // namespace
}  // namespace trestle
