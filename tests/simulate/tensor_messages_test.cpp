// Messages of tensor ranks inside of simulated actions.
#include <gtest/gtest.h>

#include "tests/simulate/event_of.h"
#include "trestle/base/error.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/simulate/simulate.h"

namespace trestle::simulate {
namespace {

using schedule::TensorMessage;
using schedule::Timeline;

schedule::Schedule table(const char* name, int stages, schedule::Recompute recompute) {
  return lower(schedule::generate(name, {.stages = stages, .micro_batches = 2}),
               {.recompute = std::vector(static_cast<std::size_t>(stages), recompute)});
}

// Two sums in F, and in B one that computation hides in part and one that it hides whole.
Costs split_stage() {
  Costs costs;
  costs.stages = {
      {.forward = 2, .backward = 4, .input_grad = 2, .recompute = 2, .forward_no_graph = 2}};
  costs.messages = {{.forward = {{.bytes = 100}, {.bytes = 200}},
                     .backward = {{.kind = MessageKind::ReduceScatter, .bytes = 300, .beside = 1},
                                  {.kind = MessageKind::AllGather, .bytes = 100, .beside = 3}}}};
  set_message_times(
      [](const LayerMessage& message) { return static_cast<double>(message.bytes) / 100; },
      costs.messages.data(), costs.stages.data());
  return costs;
}

TEST(TensorMessages, ExposedTimesAreAddedToTheActions) {
  const Costs costs = split_stage();
  EXPECT_EQ(costs.stages[0].forward, 2 + 1 + 2);
  EXPECT_EQ(costs.stages[0].forward_no_graph, 5);
  EXPECT_EQ(costs.stages[0].recompute, 5);
  EXPECT_EQ(costs.stages[0].backward, 4 + (3 - 1));
  EXPECT_EQ(costs.stages[0].input_grad, 2 + (3 - 1));
  EXPECT_EQ(costs.stages[0].weight_grad, StageCost().weight_grad) << "W has no messages";
}

TEST(TensorMessages, StandInTheTimelineAsHiddenAndExposed) {
  const Timeline timeline = simulate(table("gpipe", 1, schedule::Recompute::Never), split_stage());
  EXPECT_EQ(makespan(timeline), 2 * 5 + 2 * 6);
  ASSERT_EQ(timeline.tensor_messages.size(), 8u);
  const schedule::TensorTimes times = tensor_times(timeline, 0);
  EXPECT_EQ(times.messages, 8);
  EXPECT_EQ(times.exposed, 2 * (1 + 2 + 2));
  EXPECT_EQ(times.hidden, 2 * (1 + 1));
  // F0 computes a second before each of its sums.
  EXPECT_EQ(timeline.tensor_messages[0].wait, 1);
  EXPECT_EQ(timeline.tensor_messages[0].end, 2);
  EXPECT_EQ(timeline.tensor_messages[1].wait, 3);
  EXPECT_EQ(timeline.tensor_messages[1].end, event_of(timeline, "0F0").end);
  EXPECT_EQ(timeline.tensor_messages[1].bytes, 200);
  for (const TensorMessage& message : timeline.tensor_messages) {
    EXPECT_LE(message.begin, message.wait);
    EXPECT_LE(message.wait, message.end);
  }
}

TEST(TensorMessages, RecomputedForwardsExchangeThemAgain) {
  const Timeline timeline = simulate(table("gpipe", 1, schedule::Recompute::Always), split_stage());
  EXPECT_EQ(timeline.tensor_messages.size(), 2u * (2 + 2 + 2));
  EXPECT_EQ(makespan(timeline), 2 * (5 + 5 + 6));
}

TEST(TensorMessages, EachStageHasItsOwn) {
  Costs costs = split_stage();
  costs.stages.push_back({.forward = 1, .backward = 1});
  costs.messages.emplace_back();
  const Timeline timeline = simulate(table("1f1b", 2, schedule::Recompute::Never), costs);
  EXPECT_EQ(tensor_times(timeline, 0).messages, 8);
  EXPECT_EQ(tensor_times(timeline, 1).messages, 0);
}

TEST(TensorMessages, AreGivenForEachStageOrNone) {
  Costs costs = split_stage();
  costs.messages.emplace_back();
  EXPECT_THROW((void)simulate(table("gpipe", 1, schedule::Recompute::Never), costs), UsageError);
  costs = split_stage();
  costs.messages[0].forward[0].seconds = -1;
  EXPECT_THROW((void)simulate(table("gpipe", 1, schedule::Recompute::Never), costs), UsageError);
}

TEST(TensorMessages, AreNamedByWhatTheyDo) {
  EXPECT_EQ(schedule::tensor_message_name(MessageKind::AllReduce), "REDUCE");
  EXPECT_EQ(schedule::tensor_message_name(MessageKind::ReduceScatter), "REDUCE");
  EXPECT_EQ(schedule::tensor_message_name(MessageKind::AllGather), "GATHER");
}

}  // namespace
}  // namespace trestle::simulate
