#include "trestle/simulate/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/schedule/tables.h"
#include "trestle/base/error.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/simulate/prefetched_messages.h"
#include "trestle/simulate/simulate.h"

namespace trestle::simulate {
namespace {

using schedule::LowerOptions;
using schedule::Recompute;
using schedule::Schedule;
using schedule::Timeline;
using testing::ElementsAre;

std::vector<Bytes> peaks(const Schedule& table, const StageCost& stage,
                         const LowerOptions& options = {}, RouteCost route = {}) {
  const Schedule lowered = lower(table, options);
  Costs costs;
  costs.stages.assign(static_cast<std::size_t>(lowered.stages), stage);
  costs.routes.assign(lowered.routes.size(), route);
  return simulate(lowered, costs).peak_bytes;
}

Schedule make(const std::string& name, int stages, int micro_batches) {
  return schedule::generate(name, {.stages = stages, .micro_batches = micro_batches});
}

TEST(Memory, HoldsPersistentBytesAllTheTime) {
  EXPECT_THAT(peaks(make("gpipe", 2, 2), {.persistent = 7}), ElementsAre(7, 7));
  EXPECT_THAT(peaks(schedule::tables::two_stages_per_rank(schedule::tables::Placement::V, 2, 1),
                    {.persistent = 7}),
              ElementsAre(14, 14));
}

// The value is held beside the copy until the first F; the gradient arrives before the last B.
TEST(Memory, HoldsMessagesOfTiedParameters) {
  const auto peaks_with = [](StageCost stage, int micro_batches, int owner) {
    Costs costs;
    costs.stages.assign(2, stage);
    costs.transfer_mode = TransferMode::Pull;
    costs.ties = {{.owner = owner, .copy = 1 - owner, .bytes = 10}};
    costs.routes = {{.bytes = 1}};
    return simulate(lower(make("gpipe", 2, micro_batches), {}), costs).peak_bytes;
  };
  // On stage 0 beside the gradient of its output.
  EXPECT_THAT(peaks_with({.persistent = 100}, 2, 0), ElementsAre(100 + 10 + 1, 110));
  EXPECT_THAT(peaks_with({.persistent = 100, .transient_backward = 4}, 2, 0),
              ElementsAre(100 + 10 + 1, 110));
  EXPECT_THAT(peaks_with({.persistent = 100, .transient_backward = 12}, 2, 0),
              ElementsAre(112, 112 + 1));  // a gradient of the boundary leaves stage 1
  // The only B would make the gradients of 20; the tied one exists already.
  EXPECT_THAT(
      peaks_with({.persistent = 100, .gradients = 20, .transient_first_backward = 25}, 1, 0),
      ElementsAre(100 + 25 + 10, 125));
}

TEST(Memory, HoldsGraphsOfLiveMicroBatches) {
  EXPECT_THAT(peaks(make("gpipe", 3, 8), {.saved = 10}), ElementsAre(80, 80, 80));
  EXPECT_THAT(peaks(make("1f1b", 3, 8), {.saved = 10}), ElementsAre(30, 20, 10));
}

TEST(Memory, KeepsTheGraphUntilWWithSplitBackwards) {
  const Schedule whole = schedule::tables::from_rows({"0F0 0B0 0F1 0B1"});
  const Schedule split = schedule::tables::from_rows({"0F0 0I0 0F1 0W0 0I1 0W1"});
  EXPECT_THAT(peaks(whole, {.saved = 10}), ElementsAre(10));
  EXPECT_THAT(peaks(split, {.saved = 10}), ElementsAre(20));
}

TEST(Memory, CountsWhatWeightGradientsNeedApart) {
  const Schedule once = schedule::tables::from_rows({"0F0 0I0 0W0"});
  StageCost stage{.gradients = 20, .saved = 10, .kept_for_weights = 6, .transient_backward = 3};
  EXPECT_THAT(peaks(once, stage), ElementsAre(6 + 3 + 20));
  stage.transient_weight_grad = 1;
  EXPECT_THAT(peaks(once, stage), ElementsAre(6 + 1 + 20));
  stage.transient_first_weight_grad = 15;
  EXPECT_THAT(peaks(once, stage), ElementsAre(6 + 15));
  const Schedule twice = schedule::tables::from_rows({"0F0 0F1 0I0 0I1 0W0 0W1"});
  EXPECT_THAT(peaks(twice, stage), ElementsAre(6 + 6 + 15));
  stage.transient_weight_grad = 8;
  EXPECT_THAT(peaks(twice, stage), ElementsAre(20 + 6 + 8));
}

TEST(Memory, KeepsInputsAndOneGraphWithRecomputation) {
  const StageCost stage{.saved = 10, .kept_for_recompute = 1};
  // Seven inputs, and the graph of the eighth micro-batch.
  EXPECT_THAT(peaks(make("gpipe", 1, 8), stage, {.recompute = {Recompute::ExceptLast}}),
              ElementsAre(17));
  EXPECT_THAT(peaks(make("gpipe", 1, 8), stage, {.recompute = {Recompute::Always}}),
              ElementsAre(17));
  EXPECT_THAT(
      peaks(make("gpipe", 2, 8), stage, {.recompute = {Recompute::Always, Recompute::Never}}),
      ElementsAre(17, 80));
}

TEST(Memory, CountsTransientsWhileTheirActionRuns) {
  EXPECT_THAT(
      peaks(make("gpipe", 1, 1), {.saved = 10, .transient_forward = 5, .transient_backward = 3}),
      ElementsAre(15));
  EXPECT_THAT(
      peaks(make("gpipe", 1, 1), {.saved = 10, .transient_forward = 3, .transient_backward = 5}),
      ElementsAre(15));
  EXPECT_THAT(
      peaks(make("gpipe", 1, 2), {.saved = 10, .transient_forward = 5, .transient_backward = 3}),
      ElementsAre(25));
}

TEST(Memory, AllocatesGradientsInTheFirstBackward) {
  // Two graphs exist when the first B begins. It needs 3, including the gradients.
  StageCost stage{
      .gradients = 6, .saved = 10, .transient_backward = 1, .transient_first_backward = 3};
  EXPECT_THAT(peaks(make("gpipe", 1, 2), stage), ElementsAre(23));
  // Afterwards the gradients exist all the time.
  stage.gradients = 16;
  EXPECT_THAT(peaks(make("gpipe", 1, 2), stage), ElementsAre(27));
  EXPECT_THAT(peaks(make("1f1b", 1, 2), stage), ElementsAre(27));
  // Not measured: as if the first B freed nothing before its end.
  stage.transient_first_backward = 0;
  EXPECT_THAT(peaks(make("gpipe", 1, 2), stage), ElementsAre(37));
  // With split backwards W allocates them.
  stage = {.gradients = 6};
  const Schedule split = schedule::tables::from_rows({"0F0 0I0 0F1 0W0 0I1 0W1"});
  const auto timeline = simulate(lower(split, {}), {.stages = {stage}, .routes = {}});
  ASSERT_EQ(timeline.memory.back().bytes, 0);
  for (const auto& sample : timeline.memory) {
    const bool late = sample.time >= timeline.events[3].begin;  // 0W0
    EXPECT_EQ(sample.bytes, late && &sample != &timeline.memory.back() ? 6 : 0) << sample.time;
  }
}

TEST(Memory, HoldsAccumulatedGradientsAllTheTime) {
  const Schedule lowered = lower(make("gpipe", 1, 2), {});
  Costs costs = unit_costs(1);
  costs.stages[0] = {
      .gradients = 6, .saved = 10, .transient_backward = 1, .transient_first_backward = 3};
  EXPECT_THAT(simulate(lowered, costs).peak_bytes, ElementsAre(23));
  costs.gradients_at_start = true;
  EXPECT_THAT(simulate(lowered, costs).peak_bytes, ElementsAre(27));
}

TEST(Memory, UsesTheTransientsAndExcessOfRecomputation) {
  const Schedule lowered = lower(make("gpipe", 1, 2), {.recompute = {Recompute::Always}});
  StageCost stage{.saved = 10, .kept_for_recompute = 1, .transient_no_graph = 30};
  const auto peak = [&] {
    return simulate(lowered, {.stages = {stage}, .routes = {}}).peak_bytes[0];
  };
  EXPECT_EQ(peak(), 2 + 30);  // the second F, both inputs kept
  stage.transient_recompute = 40;
  EXPECT_EQ(peak(), 1 + 10 + 40);  // the first R
  stage.recompute_excess = 5;
  EXPECT_EQ(peak(), 1 + 15 + 40);
}

TEST(Memory, KeepsOutputsForAWholeBatchLossToTheEnd) {
  const StageCost stage{.saved = 10, .kept_for_recompute = 1, .output_kept = 4};
  // With a graph the output is a part of it. At the end of the second B both outputs remain.
  EXPECT_THAT(peaks(make("gpipe", 1, 2), stage), ElementsAre(20));
  EXPECT_THAT(peaks(make("gpipe", 1, 2), stage, {.recompute = {Recompute::Always}}),
              ElementsAre(2 * 4 + 1 + 10));
}

TEST(Memory, HoldsTheWholeMemoryOfASentView) {
  const Schedule lowered = lower(make("gpipe", 2, 4), {});
  Costs costs = unit_costs(2);
  costs.transfer_mode = TransferMode::Pull;
  costs.routes = {{.bytes = 10, .activation_excess = 5}};
  EXPECT_THAT(simulate(lowered, costs).peak_bytes, ElementsAre(60, 40));
}

TEST(Memory, HoldsPushedMessagesOnTheReceiver) {
  // Stage 1 is three times slower than stage 0, so its inputs accumulate.
  const Schedule lowered = lower(make("gpipe", 2, 4), {});
  Costs costs = unit_costs(2);
  costs.stages[1].forward = 3;
  costs.routes = {{.bytes = 10}};
  const auto timeline = simulate(lowered, costs);
  EXPECT_THAT(timeline.peak_bytes, ElementsAre(0, 20));
}

TEST(Memory, MayHoldAllPulledMessagesOnTheSender) {
  // In GPipe nothing tells stage 0 that its outputs were received before its first B needs a
  // gradient, and nothing tells stage 1 that its gradients were received.
  const Schedule lowered = lower(make("gpipe", 2, 4), {});
  Costs costs = unit_costs(2);
  costs.transfer_mode = TransferMode::Pull;
  costs.routes = {{.bytes = 10}};
  EXPECT_THAT(simulate(lowered, costs).peak_bytes, ElementsAre(40, 40));
  costs.routes[0].saved = 10;  // the sender's graph keeps them until B
  EXPECT_THAT(simulate(lowered, costs).peak_bytes, ElementsAre(0, 40));
  // Without a graph nothing else keeps them.
  const Schedule recomputed =
      lower(make("gpipe", 2, 4), {.recompute = {Recompute::Always, Recompute::Never}});
  EXPECT_THAT(simulate(recomputed, costs).peak_bytes, ElementsAre(40, 40));
}

TEST(Memory, HoldsPulledMessagesNoLongerThanTheTableAllows) {
  // In 1F1B stage 0 begins B0 only after stage 1 received both outputs 0 and produced gradient 0,
  // and stage 1 begins F2 only after stage 0 received gradient 0. Two messages may wait on either
  // side, however slow the other side is.
  const Schedule lowered = lower(make("1f1b", 2, 8), {});
  Costs costs = unit_costs(2);
  costs.transfer_mode = TransferMode::Pull;
  costs.routes = {{.bytes = 10}};
  EXPECT_THAT(simulate(lowered, costs).peak_bytes, ElementsAre(20, 20));
  costs.stages[1].forward = 50;
  EXPECT_THAT(simulate(lowered, costs).peak_bytes, ElementsAre(20, 20));
  costs.stages[0].backward = 50;
  EXPECT_THAT(simulate(lowered, costs).peak_bytes, ElementsAre(20, 20));
}

TEST(Memory, CountsTwoPrefetchedMessagesBetweenRanks) {
  // As with Pull, and rank 0 may hold two prefetched gradients as well.
  const Schedule lowered = lower(make("gpipe", 2, 4), {});
  Costs costs = unit_costs(2);
  costs.transfer_mode = TransferMode::Prefetch;
  costs.routes = {{.bytes = 10}};
  EXPECT_THAT(simulate(lowered, costs).peak_bytes, ElementsAre(40 + 20, 40));
  costs.routes[0].saved = 10;
  EXPECT_THAT(simulate(lowered, costs).peak_bytes, ElementsAre(20, 40));
  // Two outputs and two gradients on rank 0. On rank 1 two outputs and one gradient, because a
  // prefetched output comes after the previous gradient was freed.
  costs.routes[0].saved = 0;
  EXPECT_THAT(simulate(lower(make("1f1b", 2, 8), {}), costs).peak_bytes, ElementsAre(40, 30));
}

// In 1F1B rank 1 alternates between sending outputs to rank 2 and gradients to rank 0, and learns
// at different times that they were received.
TEST(Memory, FreesSentMessagesInOrderBetweenRanks) {
  const auto timeline = simulate(lower(make("1f1b", 3, 8), {}), unit_costs(3));
  const schedule::EventIndex index(timeline);
  const MessageLifetime lifetime(timeline, index);
  const PrefetchedMessages prefetched(timeline, index, lifetime);
  const schedule::RouteTable routes(timeline.stages, timeline.routes);
  std::vector<double> before(3, 0);
  int later = 0;
  for (const auto& event : timeline.events) {
    if (!is_send(event.action.kind)) continue;
    const auto transfer = routes.of(event.action);
    ASSERT_TRUE(transfer);
    const PrefetchedMessages::Held* held = prefetched.find(*transfer);
    ASSERT_NE(held, nullptr);
    const auto& route = timeline.routes[static_cast<std::size_t>(transfer->route)];
    const auto taken = transfer->way == schedule::Transfer::Way::Activation
                           ? index.forward(route.to_stage, transfer->micro_batch)
                           : index.backward(route.from_stage, transfer->micro_batch);
    const double own = lifetime.latest_end(timeline.events[*taken], event.rank);
    double& until = before[static_cast<std::size_t>(event.rank)];
    EXPECT_EQ(held->sender_until, std::max(until, own));
    if (own < until) ++later;
    until = held->sender_until;
  }
  EXPECT_GT(later, 0);
}

TEST(Memory, CountsMessagesWithinARankOnce) {
  const Schedule alone = lower(make("gpipe", 1, 4), {});
  Costs costs = unit_costs(1);
  costs.transfer_mode = TransferMode::Prefetch;
  EXPECT_THAT(simulate(alone, costs).peak_bytes, ElementsAre(0));
}

TEST(Memory, HoldsMessagesUntilTheyAreUsedInOneThread) {
  const Schedule lowered = lower(make("1f1b", 2, 8), {});
  Costs costs = unit_costs(2);
  costs.transfer_mode = TransferMode::Pull;
  costs.concurrency = Concurrency::OneThread;
  costs.routes = {{.bytes = 10}};
  // Stage 0 runs until it needs gradient 0, after output 1. Output 0 is used at once.
  EXPECT_THAT(simulate(lowered, costs).peak_bytes, ElementsAre(10, 10));
  // F = 1 and B = 2 for each micro-batch and stage, one after the other.
  EXPECT_EQ(makespan(simulate(lowered, costs)), 8 * 2 * 3);
}

TEST(Memory, AddsUpTheStagesOfADevice) {
  const Schedule lowered = lower(make("gpipe", 2, 2), {});
  Costs costs = unit_costs(2);
  costs.stages[0].persistent = 100;
  costs.stages[1].persistent = 200;
  costs.stages[0].saved = 10;
  costs.stages[1].saved = 20;
  const Timeline apart = simulate(lowered, costs);
  EXPECT_THAT(apart.peak_bytes, ElementsAre(120, 240));
  EXPECT_THAT(apart.device_peak_bytes, ElementsAre(120, 240));
  EXPECT_THAT(apart.device_of_stage, ElementsAre(0, 1));
  costs.device_of_stage = {0, 0};
  const Timeline together = simulate(lowered, costs);
  EXPECT_THAT(together.peak_bytes, ElementsAre(120, 240));
  EXPECT_THAT(together.device_peak_bytes, ElementsAre(360));  // both keep both micro-batches
}

TEST(Memory, UsesThePeakOfTheSumNotTheSumOfPeaks) {
  // One micro-batch: while stage 0 needs its transient forward, stage 1 has not begun.
  const Schedule lowered = lower(make("gpipe", 2, 1), {});
  Costs costs = unit_costs(2);
  costs.stages[0].transient_forward = 50;
  costs.stages[1].transient_backward = 70;
  costs.device_of_stage = {0, 0};
  EXPECT_THAT(simulate(lowered, costs).device_peak_bytes, ElementsAre(70));
  // An end and a begin at the same instant on two ranks may overlap.
  costs.stages[1].transient_forward = 30;
  EXPECT_THAT(simulate(lowered, costs).device_peak_bytes, ElementsAre(80));
}

TEST(Memory, CountsARankOnBothOfItsDevices) {
  Costs costs = unit_costs(4);
  for (auto& stage : costs.stages) stage.persistent = 10;
  costs.device_of_stage = {0, 1, 2, 2};  // rank 0 has stages 0 and 3
  const Timeline timeline = simulate(
      lower(schedule::tables::two_stages_per_rank(schedule::tables::Placement::V, 2, 1), {}),
      costs);
  EXPECT_THAT(timeline.peak_bytes, ElementsAre(20, 20));
  EXPECT_THAT(timeline.device_peak_bytes, ElementsAre(10, 10, 20));
}

TEST(Memory, RequiresADeviceForEachStage) {
  Costs costs = unit_costs(2);
  costs.device_of_stage = {0};
  EXPECT_THROW(simulate(lower(make("gpipe", 2, 1), {}), costs), UsageError);
  costs.device_of_stage = {0, -1};
  EXPECT_THROW(simulate(lower(make("gpipe", 2, 1), {}), costs), UsageError);
}

TEST(Memory, HoldsASkipWhereItsModeRequires) {
  LowerOptions options{.routes = schedule::tables::with_skips(4, {{0, 3, true, "s"}})};
  // The most that a rank holds while the pipeline fills, because later stage 0 only sends.
  const auto most = [&](schedule::SkipSend when, int rank) {
    options.skip_send = when;
    const Schedule lowered = lower(make("gpipe", 4, 8), options);
    Costs costs = unit_costs(4);
    costs.routes.resize(lowered.routes.size());
    costs.routes.back().bytes = 10;
    Bytes bytes = 0;
    for (const auto& sample : simulate(lowered, costs).memory) {
      if (sample.rank == rank && sample.time < 8) bytes = std::max(bytes, sample.bytes);
    }
    return bytes;
  };
  EXPECT_EQ(most(schedule::SkipSend::Eager, 0), 0);
  EXPECT_EQ(most(schedule::SkipSend::Eager, 3), 20);
  EXPECT_EQ(most(schedule::SkipSend::JustInTime, 0), 20);
  EXPECT_EQ(most(schedule::SkipSend::JustInTime, 3), 0);
}

TEST(Memory, SamplesIncreasesAndDecreases) {
  const Schedule lowered = lower(schedule::tables::from_rows({"0F0 0F1 0B1 0B0"}), {});
  Costs costs = unit_costs(1);
  costs.stages[0].persistent = 5;
  costs.stages[0].saved = 10;
  std::vector<std::pair<double, Bytes>> samples;
  for (const auto& sample : simulate(lowered, costs).memory)
    samples.emplace_back(sample.time, sample.bytes);
  using P = std::pair<double, Bytes>;
  EXPECT_THAT(samples, ElementsAre(P{0, 15}, P{1, 25}, P{4, 15}, P{6, 5}));
}

}  // namespace
}  // namespace trestle::simulate
