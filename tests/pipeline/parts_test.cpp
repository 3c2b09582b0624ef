// The pieces that a pipeline is made of, each by itself: micro-batches, the cut, channels, the
// channels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/pipeline/support.h"
#include "tests/support/virtual_environment.h"
#include "trestle/base/error.h"
#include "trestle/pipeline/channel_table.h"
#include "trestle/pipeline/cut.h"
#include "trestle/pipeline/micro_batch.h"
#include "trestle/pipeline/worker.h"

namespace trestle::pipeline {
namespace {

using namespace std::chrono_literals;
using support::message_of;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::int64_t> sizes_of(std::int64_t samples, int pieces) {
  std::vector<std::int64_t> sizes;
  for (const auto& piece : split({torch::zeros({samples, 2})}, pieces))
    sizes.push_back(piece[0].size(0));
  return sizes;
}

TEST(MicroBatch, RaggedAndShortBatches) {
  EXPECT_THAT(sizes_of(7, 4), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(sizes_of(9, 4), ElementsAre(3, 2, 2, 2));
  EXPECT_THAT(sizes_of(2, 4), ElementsAre(1, 1));
  EXPECT_THAT(sizes_of(8, 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(sizes_of(1, 1), ElementsAre(1));
  EXPECT_EQ(piece_count({torch::zeros({2})}, 4), 2);
}

TEST(MicroBatch, MergeUndoesSplit) {
  const nn::Values batch = {torch::randn({7, 3}), torch::arange(7), at::Tensor()};
  const auto pieces = split(batch, 4);
  ASSERT_EQ(pieces.size(), 4u);
  const nn::Values whole = merge(pieces);
  EXPECT_TRUE(torch::equal(whole[0], batch[0]));
  EXPECT_TRUE(torch::equal(whole[1], batch[1]));
  EXPECT_EQ(whole[1].scalar_type(), at::kLong);
  EXPECT_FALSE(whole[2].defined());
}

TEST(MicroBatch, PiecesAreViews) {
  const at::Tensor batch = torch::zeros({7, 3});
  split({batch}, 4)[3][0].fill_(1);
  EXPECT_EQ(batch[6].sum().item<double>(), 3);
}

TEST(MicroBatch, TensorsWithoutABatchGoIntoEveryPiece) {
  for (const auto& piece : split({torch::zeros({4}), torch::tensor(5.0), at::Tensor()}, 2)) {
    EXPECT_EQ(piece[1].item<double>(), 5);
    EXPECT_FALSE(piece[2].defined());
  }
}

TEST(MicroBatch, BadBatchesAreRefused) {
  EXPECT_THAT(message_of<UsageError>([] {
                split({torch::zeros({4, 2}), torch::zeros({3})}, 2);
              }),
              HasSubstr("tensor 1 of the mini-batch has 3 samples (shape [3]), an earlier one has "
                        "4"));
  EXPECT_THAT(message_of<UsageError>([] { split({torch::tensor(1.0)}, 2); }),
              HasSubstr("no tensor with a batch dimension"));
  EXPECT_THAT(message_of<UsageError>([] {
                split({torch::zeros({0, 2})}, 2);
              }),
              HasSubstr("the mini-batch is empty"));
  EXPECT_THAT(message_of<UsageError>([] {
                merge({{torch::zeros({2})}, {at::Tensor()}});
              }),
              HasSubstr("output 0"));
  EXPECT_THAT(message_of<UsageError>([] {
                merge({{torch::tensor(1.0)}, {torch::tensor(1.0)}});
              }),
              HasSubstr("no batch dimension"));
}

at::Tensor same(at::Tensor x) { return x; }
at::Tensor add(at::Tensor a, at::Tensor b) { return a + b; }

schedule::Route main_route(int from) { return {from, from + 1, false, "main"}; }

TEST(Cut, WithoutSkipsThereIsOnlyTheMainLane) {
  const Cut plan = cut(support::chain(3).graph(), {2, 2, 1});
  EXPECT_THAT(plan.routes, ElementsAre(main_route(0), main_route(1)));
  EXPECT_TRUE(plan.skips().empty());
  EXPECT_THAT(plan.main_lane(), ElementsAre(true, true, false));
  EXPECT_THAT(plan.stages[1].inputs, ElementsAre(ValueId{1, 0}));
  EXPECT_THAT(plan.stages[1].outputs, ElementsAre(ValueId{3, 0}));
  EXPECT_THAT(plan.model_outputs, ElementsAre(ValueId{4, 0}));
}

nn::Layers with_skip() {
  nn::Layers net;
  net.add("a", same).keep_output("s");
  net.add("b", same);
  net.add("c", add).take("s");
  return net;
}

TEST(Cut, StashAndPopOnOneStageTravelNowhere) {
  EXPECT_TRUE(cut(with_skip().graph(), {3}).routes.empty());
  EXPECT_THAT(cut(with_skip().graph(), {3}).stages[0].outputs, ElementsAre());
}

TEST(Cut, NeighboursHaveOneRoute) {
  const Cut plan = cut(with_skip().graph(), {2, 1});
  EXPECT_THAT(plan.routes, ElementsAre(main_route(0), schedule::Route{0, 1, true, "s"}));
}

TEST(Cut, FarStagesHaveOneDirectRoute) {
  const Cut plan = cut(with_skip().graph(), {1, 1, 1});
  EXPECT_THAT(plan.routes,
              ElementsAre(main_route(0), main_route(1), schedule::Route{0, 2, true, "s"}));
  EXPECT_THAT(plan.stages[1].inputs, ElementsAre(ValueId{0, 0}));  // not the skip on its way
  EXPECT_THAT(plan.stages[2].inputs, ElementsAre(ValueId{1, 0}, ValueId{0, 0}));
}

TEST(Cut, TwoRoutesIntoOneStageComeInTheOrderOfTheirSources) {
  nn::Layers net;
  net.add("a", same).keep_output("one");
  net.add("b", same).keep_output("two");
  net.add("c", same);
  net.add("d", add).take("two");
  net.add("e", add).take("one");
  const Cut plan = cut(net.graph(), {1, 1, 1, 2});
  EXPECT_THAT(plan.skips(),
              ElementsAre(schedule::Route{0, 3, true, "one"}, schedule::Route{1, 3, true, "two"}));
}

TEST(Cut, OneNameInTwoContainersIsTwoRoutes) {
  nn::Layers net;
  net.add("x", with_skip());
  net.add("y", with_skip());
  const Cut plan = cut(net.graph(), {1, 1, 1, 1, 1, 1});
  EXPECT_THAT(plan.skips(),
              ElementsAre(schedule::Route{0, 2, true, "x.s"}, schedule::Route{3, 5, true, "y.s"}));
}

TEST(Cut, AValueOnTheMainLaneThatIsAlsoTappedIsSentOnce) {
  nn::Layers net;
  net.add("a", same).keep_output("s");
  net.add("b", add).take("s");
  const Cut plan = cut(net.graph(), {1, 1});
  EXPECT_THAT(plan.routes, ElementsAre(main_route(0)));
  EXPECT_THAT(plan.route_values[0], ElementsAre(ValueId{0, 0}));
}

TEST(Cut, TwoConsumersOnOneStageShareARoute) {
  nn::Layers net;
  net.add("a", same).keep_output("s");
  net.add("b", same);
  net.add("c", add).take("s");
  net.add("d", add).take("s");
  EXPECT_THAT(cut(net.graph(), {1, 1, 2}).skips(), ElementsAre(schedule::Route{0, 2, true, "s"}));
}

TEST(Cut, AnOutputOfTheModelMadeEarlyTravelsToTheLastStage) {
  nn::Layers net;
  net.add("a", same).keep_output("s");
  net.add("b", same);
  net.add("c", same);
  net.also_return("s");
  const Cut plan = cut(net.graph(), {1, 1, 1});
  EXPECT_THAT(plan.skips(), ElementsAre(schedule::Route{0, 2, true, "s"}));
  EXPECT_THAT(plan.model_outputs, ElementsAre(ValueId{2, 0}, ValueId{0, 0}));
}

TEST(Cut, BadBalancesAreRefused) {
  const nn::Graph graph = support::chain(3).graph();
  EXPECT_THAT(message_of<UsageError>([&] {
                cut(graph, {2, 2});
              }),
              HasSubstr("balance [2, 2] covers 4 layers, the model has 5"));
  EXPECT_THAT(message_of<UsageError>([&] { cut(graph, {3, 3}); }), HasSubstr("covers 6 layers"));
  EXPECT_THAT(message_of<UsageError>([&] {
                cut(graph, {5, 0});
              }),
              HasSubstr("has a stage without layers"));
  EXPECT_THAT(message_of<UsageError>([&] {
                cut(graph, {6, -1});
              }),
              HasSubstr("has a stage without layers"));
}

// Writes down what happens to the events and the copies of a channel.
std::vector<std::string>& journal() {
  static std::vector<std::string> lines;
  return lines;
}

struct WatchedEvent {
  void record(at::Device device) { journal().push_back("record on " + device_name(device)); }
  void wait(at::Device device) { journal().push_back("wait on " + device_name(device)); }
};

// Notes when the last holder lets go of a tensor's memory.
at::Tensor watched_tensor() {
  auto* data = new float[2]{1, 2};
  return torch::from_blob(data, {2}, [](void* memory) {
    journal().push_back("free");
    delete[] static_cast<float*>(memory);
  });
}

struct WatchedCopy {
  at::Tensor operator()(const at::Tensor& tensor, at::Device device) const {
    journal().push_back("read");
    return to_device(tensor, device);
  }
};

TEST(Channel, WaitsBeforeItReadsAndRecordsBeforeItFrees) {
  journal().clear();
  BasicChannel<WatchedEvent, WatchedCopy> channel;
  const at::Device consumer("virtual:1");
  EXPECT_FALSE(channel.full());
  channel.put({.values = {watched_tensor()}, .requires_grad = {true}}, at::kCPU);
  EXPECT_TRUE(channel.full());
  const Message taken = channel.take(consumer);
  EXPECT_FALSE(channel.full());
  EXPECT_THAT(journal(), ElementsAre("record on cpu", "wait on virtual:1", "read",
                                     "record on virtual:1", "wait on cpu", "free"));
  EXPECT_EQ(taken.values[0].device(), consumer);
  EXPECT_EQ(taken.values[0].sum().item<float>(), 3);
  EXPECT_TRUE(taken.requires_grad[0]);
}

TEST(Channel, OnOneDeviceTheTensorItselfGoesOver) {
  journal().clear();
  BasicChannel<WatchedEvent, WatchedCopy> channel;
  const at::Tensor tensor = torch::ones({2});
  channel.put({.values = {tensor}, .requires_grad = {false}}, at::kCPU);
  EXPECT_TRUE(channel.take(at::kCPU).values[0].is_same(tensor));
  EXPECT_THAT(journal(), ElementsAre("record on cpu"));
}

TEST(Channel, KeepsTheProducersMemoryUntilItIsTaken) {
  journal().clear();
  BasicChannel<WatchedEvent, WatchedCopy> channel;
  channel.put({.values = {watched_tensor(), at::Tensor()}, .requires_grad = {true, false}},
              at::kCPU);
  EXPECT_THAT(journal(), ElementsAre("record on cpu"));
  EXPECT_FALSE(channel.take(at::Device("virtual:0")).values[1].defined());
  EXPECT_EQ(journal().back(), "free");
}

TEST(ChannelTable, SaysWhoWaitedForWhomWhenItIsTooLate) {
  ChannelTable channels({main_route(0), {0, 1, true, "s"}}, {0, 1}, 2, 3, 20ms);
  EXPECT_THAT(
      message_of<DeadlineError>([&] { channels.receive(0, 1, Direction::Activation, at::kCPU); }),
      HasSubstr("rank 1 waited 20 ms for the activations of micro-batch 1 from rank 0, which has "
                "not finished anything yet"));
  channels.finished(1, {.kind = schedule::Kind::Forward, .stage = 1, .micro_batch = 2});
  EXPECT_THAT(
      message_of<DeadlineError>([&] { channels.receive(1, 2, Direction::Gradient, at::kCPU); }),
      HasSubstr("rank 0 waited 20 ms for the gradient of skip 's' of micro-batch 2 from rank 1, "
                "which last finished 1F2"));
}

TEST(ChannelTable, DeliversEachMessageToItsOwnPlace) {
  ChannelTable channels({main_route(0)}, {0, 1}, 2, 2, 10s);
  auto message = [](double value) {
    return Message{.values = {torch::tensor(value)}, .requires_grad = {true}};
  };
  channels.send(0, 1, Direction::Activation, message(1), at::kCPU);
  channels.send(0, 0, Direction::Activation, message(2), at::kCPU);
  channels.send(0, 0, Direction::Gradient, message(3), at::kCPU);
  EXPECT_TRUE(channels.arrived(0, 1, Direction::Activation));
  EXPECT_FALSE(channels.arrived(0, 1, Direction::Gradient));
  auto got = [&](int micro_batch, Direction direction) {
    return channels.receive(0, micro_batch, direction, at::kCPU).values[0].item<double>();
  };
  EXPECT_EQ(got(0, Direction::Activation), 2);
  EXPECT_EQ(got(1, Direction::Activation), 1);
  EXPECT_EQ(got(0, Direction::Gradient), 3);
  EXPECT_FALSE(channels.arrived(0, 1, Direction::Activation));
}

TEST(ChannelTable, CancelWakesEveryoneAndKeepsTheFirstFailure) {
  const support::WatchDog dog("ChannelTable.cancel");
  ChannelTable channels({main_route(0), main_route(1)}, {0, 1, 2}, 3, 1, 1h);
  std::atomic<int> cancelled = 0;
  std::vector<std::thread> waiting;
  for (const int route : {0, 1}) {
    waiting.emplace_back([&, route] {
      try {
        channels.receive(route, 0, Direction::Activation, at::kCPU);
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
  EXPECT_THROW(channels.arrived(0, 0, Direction::Activation), Cancelled);
}

TEST(Worker, FinishesWhatItWasGiven) {
  std::atomic<int> done = 0;
  {
    std::vector<std::unique_ptr<Worker>> workers;
    for (int i = 0; i < 10; ++i) workers.push_back(std::make_unique<Worker>(1));
    for (auto& worker : workers) {
      for (int job = 0; job < 5; ++job) worker->run([&] { ++done; });
    }
  }
  EXPECT_EQ(done, 50);
}

}  // namespace
}  // namespace trestle::pipeline
