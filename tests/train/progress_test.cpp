#include "trestle/train/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace trestle::train {
namespace {

using testing::HasSubstr;
using testing::Not;

RunPlan some_plan() {
  RunPlan plan;
  plan.devices = "2 virtual devices of 1 MiB on 2 cores";
  plan.model = "unet";
  plan.layers = 22;
  plan.parameters = 1942594;
  plan.balance = {13, 9};
  plan.balance_from = "given";
  plan.stages = {{"virtual:0", 13, 2 << 20, 1 << 20}, {"virtual:1", 9, 0, 0}};
  plan.schedule = "gpipe";
  plan.micro_batches = 4;
  plan.recompute = "except_last";
  plan.precision = "bf16";
  plan.batch = 16;
  plan.accumulate = 2;
  plan.steps_per_epoch = 5;
  plan.predicted_seconds = 0.31;
  plan.predicted_idle = 0.2;
  return plan;
}

std::string spoken(ProgressStyle style, Colours colours) {
  std::ostringstream out;
  const auto progress = make_progress(style, colours, out);
  progress->plan(some_plan());
  progress->step(
      {.epoch = 1, .epochs = 2, .step = 3, .steps = 8, .loss = 0.5, .examples_per_second = 10});
  EpochReport epoch;
  epoch.epoch = 1;
  epoch.epochs = 2;
  epoch.steps = 8;
  epoch.training_loss = 0.4123;
  epoch.metric_name = "dice";
  epoch.metric = 0.871;
  epoch.picture = "p.png";
  progress->epoch(epoch);
  TrainResult result;
  result.run_folder = "runs/x";
  result.steps = 8;
  result.peaks = {{"virtual:0", 3 << 20, 2 << 20}};
  progress->done(result);
  return out.str();
}

TEST(Progress, InAFileOneLineAnEpochAndNoControlCharacters) {
  const std::string words = spoken(ProgressStyle::Lines, Colours::Off);
  EXPECT_THAT(words, Not(HasSubstr("\x1b")));
  EXPECT_THAT(words, Not(HasSubstr("\r")));
  EXPECT_THAT(words, Not(HasSubstr("3/8")));
  EXPECT_THAT(words, HasSubstr("1,942,594 parameters · cut [13, 9] (balance: given)"));
  EXPECT_THAT(words, HasSubstr("recompute except_last · bf16 · predicted"));
  EXPECT_THAT(words, HasSubstr("in 3 steps of 2 x 16,"));
  EXPECT_THAT(words, HasSubstr("peak at most 2.0 MiB of 1.0 MiB: may not fit"));
  EXPECT_THAT(words, HasSubstr("8/8  loss 0.412  dice 0.871"));
  EXPECT_THAT(words, HasSubstr("continue: trestle train --resume runs/x\n"));
}

TEST(Progress, HowARunGoesOnIsSaidWhole) {
  std::ostringstream out;
  TrainResult result;
  result.run_folder = "runs/x";
  result.finished = true;
  result.steps = 8;
  result.to_go_on = "--max-steps N";
  make_progress(ProgressStyle::Lines, Colours::Off, out)->done(result);
  EXPECT_THAT(out.str(), HasSubstr("continue: trestle train --resume runs/x --max-steps N\n"));
}

TEST(Progress, LentCoresAndTheOrderInMemoryAreSaid) {
  RunPlan plan = some_plan();
  std::ostringstream plain;
  make_progress(ProgressStyle::Lines, Colours::Off, plain)->plan(plan);
  EXPECT_THAT(plain.str(), Not(HasSubstr("cores lent")));
  EXPECT_THAT(plain.str(), Not(HasSubstr("channels_last")));
  plan.core_lending = "cores lent";
  plan.channels_last = true;
  std::ostringstream faster;
  make_progress(ProgressStyle::Lines, Colours::Off, faster)->plan(plan);
  EXPECT_THAT(faster.str(), HasSubstr("recompute except_last · cores lent · bf16 · predicted"));
  EXPECT_THAT(faster.str(), HasSubstr("parameters · channels_last · cut [13, 9]"));
}

TEST(Progress, WhatNobodyMeasuredIsNotSaid) {
  const std::string words = spoken(ProgressStyle::Lines, Colours::Off);
  EXPECT_THAT(words, Not(HasSubstr("0.0 images/s"))) << "no step of the epoch was timed";
  std::ostringstream out;
  TrainResult result;
  result.best_epoch = 1;
  result.metric_name = "dice";
  make_progress(ProgressStyle::Lines, Colours::Off, out)->done(result);
  EXPECT_THAT(out.str(), Not(HasSubstr("best dice"))) << "without validation there is none";
  result.best_metric = 0.5;
  make_progress(ProgressStyle::Lines, Colours::Off, out)->done(result);
  EXPECT_THAT(out.str(), HasSubstr("best dice 0.500 (epoch 1)"));
}

TEST(Progress, OnATerminalTheBarMovesInPlace) {
  const std::string words = spoken(ProgressStyle::Terminal, Colours::Off);
  EXPECT_THAT(words, HasSubstr("\r\x1b[2Kepoch 1/2 ━━━━━━━─"));
  EXPECT_THAT(words, Not(HasSubstr("\x1b[1m")));
  EXPECT_THAT(spoken(ProgressStyle::Terminal, Colours::On), HasSubstr("\x1b[1m"));
}

TEST(Progress, JsonIsOneObjectALine) {
  std::istringstream lines(spoken(ProgressStyle::Json, Colours::Off));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_THAT(line, testing::StartsWith("{\"event\":\""));
    EXPECT_EQ(line.back(), '}');
  }
  EXPECT_EQ(count, 4);
  EXPECT_EQ(spoken(ProgressStyle::Silent, Colours::Off), "");
}

}  // namespace
}  // namespace trestle::train
