#include "trestle/view/time_axis.h"

#include <gmock/gmock.h>

#include "tests/view/samples.h"

namespace trestle::view {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> labels(const std::vector<Tick>& ticks) {
  std::vector<std::string> result;
  for (const Tick& tick : ticks) result.push_back(tick.label);
  return result;
}

TEST(TimeAxis, DistinguishesSlotsFromSeconds) {
  const auto simulated = samples::unit("gpipe", 2, 4);
  EXPECT_EQ(resolve(TimeUnit::Auto, {simulated}), TimeUnit::Slots);
  EXPECT_EQ(resolve(TimeUnit::Auto, {samples::unet()}), TimeUnit::Seconds);
  EXPECT_EQ(resolve(TimeUnit::Auto, {simulated, samples::measured(simulated)}), TimeUnit::Seconds);
  EXPECT_EQ(resolve(TimeUnit::Seconds, {simulated}), TimeUnit::Seconds);
}

TEST(TimeAxis, FindsTheCommonSlotOfCosts) {
  auto timeline = samples::by_hand();
  EXPECT_DOUBLE_EQ(slot_length(timeline), 1);
  for (auto& event : timeline.events) {  // F = 2, B = 3: a slot of 1 is half of the shortest action
    const bool forward = event.action.kind == schedule::Kind::Forward;
    event.begin = forward ? 2.0 * event.action.stage : 8 + 3.0 * (3 - event.action.stage);
    event.end = event.begin + (forward ? 2 : 3);
  }
  EXPECT_DOUBLE_EQ(slot_length(timeline), 1);
  EXPECT_EQ(slot_length(samples::measured(timeline)), 0);
  EXPECT_EQ(slot_length({}), 0);
}

TEST(TimeAxis, PutsTicksAtRoundNumbers) {
  EXPECT_THAT(labels(ticks(33, TimeUnit::Slots, 8)),
              ElementsAre("0", "5", "10", "15", "20", "25", "30"));
  EXPECT_THAT(labels(ticks(0.5332, TimeUnit::Seconds, 7)),
              ElementsAre("0", "100", "200", "300", "400", "500"));
  EXPECT_EQ(axis_unit(0.5332, TimeUnit::Seconds), "ms");
  EXPECT_EQ(axis_unit(120, TimeUnit::Seconds), "s");
  EXPECT_EQ(axis_unit(12e-6, TimeUnit::Seconds), "us");
  EXPECT_THAT(labels(round_ticks(0.66, 0.97, 6)), ElementsAre("0.7", "0.8", "0.9"));
  EXPECT_THAT(labels(round_ticks(1, 3, 11, 1)), ElementsAre("1", "2", "3"));
  EXPECT_THAT(labels(round_ticks(0, 1e300, 3)), ElementsAre("0", "5e+299", "1e+300"));
  EXPECT_THAT(labels(round_ticks(-0.2, 0.2, 5)), ElementsAre("-0.2", "-0.1", "0.0", "0.1", "0.2"));
  EXPECT_THAT(labels(ticks(3, TimeUnit::Slots, 8)), ElementsAre("0", "1", "2", "3"));
  EXPECT_THAT(labels(ticks(0, TimeUnit::Slots, 8)), ElementsAre("0"));
}

TEST(TimeAxis, LabelsOfTinyValuesHaveExponents) {
  EXPECT_THAT(labels(round_ticks(0, 8.3e-7, 6)),
              ElementsAre("0", "2e-07", "4e-07", "6e-07", "8e-07"));
  EXPECT_THAT(labels(round_ticks(8e-6, 1.2e-5, 6)),
              ElementsAre("8e-06", "9e-06", "1.0e-05", "1.1e-05", "1.2e-05"));
  EXPECT_THAT(labels(round_ticks(-1e-12, 1e-12, 3)), ElementsAre("-1e-12", "0", "1e-12"));
  EXPECT_THAT(labels(round_ticks(0.0, 0.004, 3)), ElementsAre("0.000", "0.002", "0.004"));
}

TEST(TimeAxis, FormatsDurations) {
  EXPECT_EQ(duration_text(33, TimeUnit::Slots), "33 slots");
  EXPECT_EQ(duration_text(1, TimeUnit::Slots), "1 slot");
  EXPECT_EQ(duration_text(0.31, TimeUnit::Seconds), "310 ms");
  EXPECT_EQ(decimal(-0.0001, 1), "0.0");
  EXPECT_EQ(decimal(100, 0, Zeros::Drop), "100");
  EXPECT_EQ(decimal(1e300, 3), "1e+300");
  EXPECT_EQ(decimal(-1.23456e15, 3), "-1.235e+15");
}

}  // namespace
}  // namespace trestle::view
