#include "trestle/train/progress/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "trestle/base/terminal.h"

namespace trestle::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
  plan.epochs = 2;
  plan.predicted_seconds = 0.31;
  plan.predicted_idle = 0.2;
  return plan;
}

void speak(Progress& progress) {
  progress.plan(some_plan());
  progress.synthesizing_data(1, 3);
  progress.note("classes   0 = background (12.0 %), 1 = car (88.0 %)");
  progress.step(
      {.epoch = 1, .epochs = 2, .step = 3, .steps = 8, .loss = 0.5, .examples_per_second = 10});
  EpochReport epoch;
  epoch.epoch = 1;
  epoch.epochs = 2;
  epoch.steps = 8;
  epoch.training_loss = 0.4123;
  epoch.metric_name = "dice";
  epoch.metric = 0.871;
  epoch.picture = "p.png";
  epoch.seconds = 9.66;
  progress.validation_step({.epoch = 1, .epochs = 2, .step = 5, .steps = 6, .loss = 0.7});
  progress.epoch(epoch);
  TrainResult result;
  result.run_folder = "runs/x";
  result.steps = 8;
  result.peaks = {{"virtual:0", 3 << 20, 2 << 20}};
  progress.done(result);
}

std::string spoken(ProgressStyle style, Colours colours) {
  std::ostringstream out;
  speak(*make_progress(style, colours, out, [] { return 200; }));
  return out.str();
}

TEST(Progress, SaysWhatIsTrainedAndWhatIsFrozen) {
  RunPlan plan = some_plan();
  plan.frozen_parameters = 1942000;
  std::ostringstream lines, json;
  make_progress(ProgressStyle::Lines, Colours::Off, lines, [] { return 200; })->plan(plan);
  EXPECT_THAT(lines.str(), HasSubstr("22 layers · 594 trained and 1,942,000 frozen parameters · "));
  make_progress(ProgressStyle::Json, Colours::Off, json, [] { return 200; })->plan(plan);
  EXPECT_THAT(json.str(), HasSubstr(R"("parameters":1942594,"frozen_parameters":1942000)"));
}

TEST(Progress, WritesOneLinePerEpochToFiles) {
  const std::string words = spoken(ProgressStyle::Lines, Colours::Off);
  EXPECT_THAT(words, Not(HasSubstr("\x1b")));
  EXPECT_THAT(words, Not(HasSubstr("\r")));
  EXPECT_THAT(words, Not(HasSubstr("3/8")));
  EXPECT_THAT(words, HasSubstr("1,942,594 parameters · cut [13, 9] (balance: given)"));
  EXPECT_THAT(words, HasSubstr("recompute except_last · bf16 · predicted"));
  EXPECT_THAT(words, HasSubstr("in 3 steps of 2 x 16,"));
  EXPECT_THAT(words, HasSubstr("may not fit: needs at most 2.0 MiB, has 1.0 MiB"));
  EXPECT_THAT(words, HasSubstr("8/8  loss 0.412  dice 0.871  in 9.7 s\n"));
  EXPECT_THAT(words, HasSubstr("continue: trestle train --resume runs/x\n"));
}

// 2 rows of 1,000 tokens per second, 5e8 operations for each token: 1e12 per second.
TEST(Progress, PrintsModelFlopsAndTheirShareOfThePeak) {
  EpochReport epoch;
  epoch.epoch = epoch.epochs = 1;
  epoch.examples_per_second = 2;
  epoch.tokens_per_example = 1000;
  epoch.flops_per_token = 5e8;
  const auto said = [&](ProgressStyle style) {
    std::ostringstream out;
    make_progress(style, Colours::Off, out, [] { return 200; })->epoch(epoch);
    return out.str();
  };
  EXPECT_THAT(said(ProgressStyle::Lines), HasSubstr("2000 tokens/s, 1.00 TFLOP/s\n"));
  EXPECT_THAT(said(ProgressStyle::Json), HasSubstr("\"model_flops_per_second\":1000000000000.0"));
  EXPECT_THAT(said(ProgressStyle::Json), Not(HasSubstr("mfu")));
  EXPECT_EQ(token_rate(epoch).utilisation(), std::nullopt);
  epoch.peak_flops = 8e12;
  EXPECT_THAT(said(ProgressStyle::Lines), HasSubstr("1.00 TFLOP/s, MFU 12.5 %\n"));
  EXPECT_THAT(said(ProgressStyle::Json), HasSubstr("\"mfu\":0.125"));
  epoch.flops_per_token = 4e7;
  EXPECT_THAT(said(ProgressStyle::Lines), HasSubstr("80.00 GFLOP/s, MFU 1.0 %\n"));
  epoch.flops_per_token = 0;  // another model than a language model
  EXPECT_THAT(said(ProgressStyle::Lines), Not(HasSubstr("FLOP")));
}

TEST(Progress, PrintsWholeResumeCommand) {
  std::ostringstream out;
  TrainResult result;
  result.run_folder = "runs/x";
  result.finished = true;
  result.steps = 8;
  result.resume_flags = "--max-steps N";
  make_progress(ProgressStyle::Lines, Colours::Off, out)->done(result);
  EXPECT_THAT(out.str(), HasSubstr("continue: trestle train --resume runs/x --max-steps N\n"));
}

TEST(Progress, PrintsLentCoresAndMemoryFormat) {
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

TEST(Progress, OmitsNumbersThatWereNotMeasured) {
  const std::string words = spoken(ProgressStyle::Lines, Colours::Off);
  EXPECT_THAT(words, Not(HasSubstr("0.0 images/s"))) << "no step of the epoch was timed";
  std::ostringstream out;
  TrainResult result;
  result.best_epoch = 1;
  result.metric_name = "dice";
  make_progress(ProgressStyle::Lines, Colours::Off, out)->done(result);
  EXPECT_THAT(out.str(), Not(HasSubstr("best dice"))) << "no best metric without validation";
  result.best_metric = 0.5;
  make_progress(ProgressStyle::Lines, Colours::Off, out)->done(result);
  EXPECT_THAT(out.str(), HasSubstr("best dice 0.500 (epoch 1)"));
}

TEST(Progress, RedrawsBarInPlaceOnTerminal) {
  const std::string words = spoken(ProgressStyle::Terminal, Colours::Off);
  EXPECT_THAT(words, HasSubstr("\r\x1b[2Kepoch 1/2 ━━━━━━━─"));
  EXPECT_THAT(words,
              HasSubstr("\r\x1b[2Kepoch 1/2 validation ━━━━━━━━━━━━━━━━──── 5/6  loss 0.700"));
  EXPECT_THAT(words, HasSubstr("\r\x1b[2Ksynthesizing data ━━━━━━────────────── 1/3"));
  EXPECT_THAT(words, HasSubstr("\r\x1b[2Kclasses   0 = background")) << "on the bar's line";
  EXPECT_THAT(words, Not(HasSubstr("\x1b[1m")));
  EXPECT_THAT(spoken(ProgressStyle::Terminal, Colours::On), HasSubstr("\x1b[1m"));
}

// The terminal is wide enough for every single part of a line.
TEST(Progress, FitsEveryLineIntoTerminal) {
  for (int columns = 60; columns <= 200; ++columns) {
    std::ostringstream out;
    const auto progress =
        make_progress(ProgressStyle::Terminal, Colours::On, out, [&] { return columns; });
    speak(*progress);
    const std::string words = out.str();
    std::istringstream lines(words);
    for (std::string line; std::getline(lines, line);) {
      if (const auto erased = line.rfind("\x1b[2K"); erased != std::string::npos)
        line.erase(0, erased + 4);
      EXPECT_LE(columns_of(line), columns) << line;
    }
  }
}

TEST(Progress, HeaderNamesRun) {
  RunPlan plan = some_plan();
  plan.name = "quick";
  const auto header = [&] {
    std::ostringstream out;
    make_progress(ProgressStyle::Lines, Colours::Off, out)->plan(plan);
    return out.str();
  };
  EXPECT_THAT(header(), HasSubstr("\nrun       quick · 2 epochs, 6 steps\n")) << "on paper";
  plan.folder = "runs/quick_2";
  plan.max_steps = 1;
  EXPECT_THAT(header(),
              HasSubstr("\nrun       quick_2 · 2 epochs, 1 step · writes into runs/quick_2\n"));
  plan.max_steps = 0;
  plan.steps_done = 1;
  plan.epochs = 1;
  EXPECT_THAT(header(), HasSubstr(" · 1 epoch, 3 steps · resumes after 1 step · writes"));
  EXPECT_THAT(header(), ::testing::StartsWith("trestle "));
  EXPECT_THAT(header(), HasSubstr(" · libtorch "));
  plan.steps_per_epoch = 0;
  plan.data_missing = "no folder";
  EXPECT_THAT(header(), HasSubstr(" · 1 epoch · resumes")) << "the number of steps is unknown";
}

// Regression: a run used fewer micro-batches than requested, and did not print it.
TEST(Progress, NamesMicroBatchesThatBatchIsTooSmallFor) {
  RunPlan plan = some_plan();
  plan.micro_batches = 4;
  plan.requested_micro_batches = 64;
  std::ostringstream out;
  make_progress(ProgressStyle::Lines, Colours::Off, out)->plan(plan);
  EXPECT_THAT(out.str(), HasSubstr(" · 4 micro-batches of one sample, not 64 · recompute "));
}

TEST(Progress, UsesSingularForOne) {
  RunPlan plan = some_plan();
  plan.layers = plan.micro_batches = 1;
  plan.stages = {{"virtual:0", 1, 2 << 20, 0}, {"virtual:1", 12, 2 << 20, 0}};
  std::ostringstream out;
  make_progress(ProgressStyle::Lines, Colours::Off, out)->plan(plan);
  EXPECT_THAT(out.str(), HasSubstr("unet · 1 layer · "));
  EXPECT_THAT(out.str(), HasSubstr(" · 1 micro-batch · "));
  EXPECT_THAT(out.str(), HasSubstr("virtual:0    1 layer    peak"));
  EXPECT_THAT(out.str(), HasSubstr("virtual:1   12 layers   peak"));
}

TEST(Progress, WritesLineEveryNBatchesToFiles) {
  std::ostringstream out;
  const auto progress = make_progress(ProgressStyle::Lines, Colours::Off, out);
  RunPlan plan = some_plan();
  plan.log_every = 2;
  progress->plan(plan);
  out.str("");
  StepReport report{.epoch = 1, .epochs = 2, .steps = 8, .loss = 0.5, .learning_rate = 1e-4};
  for (report.step = 1; report.step <= 4; ++report.step) {
    if (report.step == 3) report.examples_per_second = 10;
    if (report.step == 3) report.seconds_left = 5;
    if (report.step == 4) report.run_seconds_left = 62;
    progress->step(report);
  }
  EXPECT_EQ(
      out.str(),
      "epoch 1/2  2/8  loss 0.500  learning rate 0.0001\n"
      "epoch 1/2  4/8  loss 0.500  learning rate 0.0001  10.0 images/s  5 s left, run 1 min 2 s\n");
  out.str("");
  report.seconds_left.reset();
  report.step = 6;
  progress->validation_step(report);
  EXPECT_EQ(out.str(),
            "epoch 1/2  validation 6/8  loss 0.500  10.0 images/s  run 1 min 2 s left\n");
  plan.log_every = 0;
  progress->plan(plan);
  out.str("");
  progress->step(report);
  progress->validation_step(report);
  EXPECT_EQ(out.str(), "");
}

TEST(Progress, WritesOneJsonObjectPerLine) {
  std::istringstream lines(spoken(ProgressStyle::Json, Colours::Off));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_THAT(line, ::testing::StartsWith("{\"event\":\""));
    EXPECT_EQ(line.back(), '}');
  }
  EXPECT_EQ(count, 6);
  EXPECT_EQ(spoken(ProgressStyle::Silent, Colours::Off), "");
}

TEST(Progress, ReportsSlowPrecisionAsEventOrLine) {
  const SlowPrecisionReport report{.precision = "fp16",
                                   .weight = "in.weight [8, 4]",
                                   .seconds = 0.5,
                                   .fp32_seconds = 0.25,
                                   .better = "bf16",
                                   .words = "fp16 is slow"};
  std::ostringstream json, lines;
  make_progress(ProgressStyle::Json, Colours::Off, json)->slow_precision(report);
  EXPECT_EQ(
      json.str(),
      "{\"event\":\"slow_precision\",\"precision\":\"fp16\",\"weight\":\"in.weight [8, 4]\","
      "\"seconds\":0.5,\"fp32_seconds\":0.25,\"better\":\"bf16\",\"text\":\"fp16 is slow\"}\n");
  make_progress(ProgressStyle::Lines, Colours::Off, lines)->slow_precision(report);
  EXPECT_EQ(lines.str(), "fp16 is slow\n");
}

}  // namespace
}  // namespace trestle::train
