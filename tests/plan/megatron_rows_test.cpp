// Predictions of the shipped profile against measured steps that Megatron-LM's authors published.
// Nothing is fitted to them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/plan/published_picture.h"
#include "tests/plan/vtrain.h"
#include "trestle/base/files.h"

namespace trestle::plan {
namespace {

// Narayanan et al. 2021, table 1: whole blocks recomputed, 2048 tokens, a vocabulary of 51200.
// Micro-batches and chunks are those of Megatron-LM's scripts. 8 x 200 Gbit/s a node.
struct ScalingRow {
  double billions;  // of parameters, as printed
  int heads, hidden, layers, tensor, pipeline, devices, batch, micro_batch, chunks;
  double teraflops;  // of a device, as printed
};
constexpr ScalingRow scaling_rows[] = {{1.7, 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137},
                                       {3.6, 32, 3072, 30, 2, 1, 64, 512, 16, 1, 138},
                                       {7.5, 32, 4096, 36, 4, 1, 128, 512, 16, 1, 142},
                                       {18.4, 48, 6144, 40, 8, 1, 256, 1024, 8, 1, 135},
                                       {39.1, 64, 8192, 48, 8, 2, 512, 1536, 4, 1, 138},
                                       {76.1, 80, 10240, 60, 8, 4, 1024, 1792, 2, 3, 140},
                                       {145.6, 96, 12288, 80, 8, 8, 1536, 2304, 2, 2, 148},
                                       {310.1, 128, 16384, 96, 8, 16, 1920, 2160, 1, 2, 155},
                                       {529.6, 128, 20480, 105, 8, 35, 2520, 2520, 1, 3, 163},
                                       {1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 1, 1, 163}};

// Korthikanti et al. 2022, table 5: seconds with whole blocks recomputed, and with token shards and
// the core of attention recomputed.
struct RecomputationRow {
  const char* name;
  int heads, hidden, layers, pipeline, chunks, batch, micro_batch;
  double all, selective;
};
constexpr RecomputationRow recomputation_rows[] = {
    {"22B", 64, 6144, 48, 1, 1, 4, 4, 1.42, 1.10},
    {"175B", 96, 12288, 96, 8, 3, 64, 1, 18.13, 13.75},
    {"530B", 128, 20480, 105, 35, 3, 280, 1, 49.05, 37.83},
    {"1T", 160, 25600, 128, 64, 1, 512, 1, 94.42, 71.49}};

KnownStep step_of(const ScalingRow& row) {
  KnownStep step{.model = {.layers = row.layers,
                           .hidden = row.hidden,
                           .heads = row.heads,
                           .sequence = 2048,
                           .vocabulary = 51200},
                 .strategy = {.tensor = row.tensor,
                              .pipeline = row.pipeline,
                              .data = row.devices / row.tensor / row.pipeline,
                              .micro_batch = row.micro_batch,
                              .recompute = BlockRecompute::All,
                              .chunks = row.chunks},
                 .batch = row.batch};
  // The published rate counts what is recomputed (equation 3 there).
  step.seconds = recomputed_flops(step.model, row.batch) / (row.devices * row.teraflops * 1e12);
  return step;
}

KnownStep step_of(const RecomputationRow& row, BlockRecompute recompute) {
  return {.model = {.layers = row.layers,
                    .hidden = row.hidden,
                    .heads = row.heads,
                    .sequence = 2048,
                    .vocabulary = 51200},
          .strategy = {.tensor = 8,
                       .pipeline = row.pipeline,
                       .data = 1,
                       .micro_batch = row.micro_batch,
                       .recompute = recompute,
                       .chunks = row.chunks,
                       .sequence_parallel = recompute == BlockRecompute::Selective},
          .batch = row.batch,
          .seconds = recompute == BlockRecompute::All ? row.all : row.selective};
}

std::vector<std::pair<std::string, KnownStep>> published_steps() {
  std::vector<std::pair<std::string, KnownStep>> steps;
  for (const ScalingRow& row : scaling_rows)
    steps.emplace_back(text("SC21 ", row.billions, "B"), step_of(row));
  for (const RecomputationRow& row : recomputation_rows)
    for (const BlockRecompute recompute : {BlockRecompute::All, BlockRecompute::Selective})
      steps.emplace_back(text("recompute ", row.name, " ", to_string(recompute)),
                         step_of(row, recompute));
  return steps;
}

// The nodes of both papers have eight adapters of 200 Gbit/s.
Machine published_machine() {
  Machine machine = vtrain::machine();
  machine.between.bandwidth.value = 200e9;
  return machine;
}

TEST(MegatronRows, ParameterCountsAreThePrintedDigits) {
  for (const ScalingRow& row : scaling_rows)
    EXPECT_EQ(std::round(parameters_of(step_of(row).model) / 1e8) / 10, row.billions);
}

TEST(MegatronRows, TimesOfPublishedSteps) {
  const auto steps = published_steps();
  const Machine machine = published_machine();
  vtrain::Predictor predict;
  double sum = 0, worst = 0, within = 0;
  for (const auto& [name, step] : steps) {
    const double seconds = predict(machine, step);
    const double error = 100 * (seconds / step.seconds - 1);
    std::cout << name << ": published " << step.seconds << " s, predicted " << seconds << " s, "
              << error << " %\n";
    sum += std::abs(error);
    worst = std::max(worst, std::abs(error));
    if (std::abs(error) <= 100 * machine.transformer.spread.value) ++within;
  }
  const double mean = sum / static_cast<double>(steps.size());
  std::cout << "mean " << mean << " %, worst " << worst << " %\n";
  EXPECT_LE(mean, 10);
  EXPECT_LE(worst, 18);
  EXPECT_EQ(within, 17) << "the shipped 'spread' names this number";
}

// More rows, of which the sources leave a setting open. It is assumed here, not fitted.
struct AssumedRow {
  const char* name;
  int heads, hidden, layers, sequence, tensor, pipeline, devices, batch, micro_batch;
  double seconds;
};

double error_of(const AssumedRow& row, const Machine& machine) {
  const KnownStep step{.model = {.layers = row.layers,
                                 .hidden = row.hidden,
                                 .heads = row.heads,
                                 .sequence = row.sequence,
                                 .vocabulary = 51200},
                       .strategy = {.tensor = row.tensor,
                                    .pipeline = row.pipeline,
                                    .data = row.devices / row.tensor / row.pipeline,
                                    .micro_batch = row.micro_batch,
                                    .recompute = BlockRecompute::All},
                       .batch = row.batch};
  vtrain::Predictor predict;
  const double seconds = predict(machine, step);
  const double error = 100 * (seconds / row.seconds - 1);
  std::cout << row.name << ": published " << row.seconds << " s, predicted " << seconds << " s, "
            << error << " %\n";
  return error;
}

TEST(MegatronRows, StepsWithAnAssumedSetting) {
  const AssumedRow rows[] = {
      // Megatron-LM's README of 2020, tensor ranks only. Assumed: one micro-batch of 16.
      {"2020 1.2B", 15, 1920, 24, 1024, 1, 1, 1, 16, 16, 1.076},
      {"2020 2.0B", 18, 2304, 30, 1024, 2, 1, 2, 16, 16, 1.026},
      {"2020 4.2B", 24, 3072, 36, 1024, 4, 1, 4, 16, 16, 1.162},
      {"2020 8.7B", 32, 4096, 42, 1024, 8, 1, 8, 16, 16, 1.343},
      // Narayanan et al. 2021, table 2, from 153, 149 and 141 TFLOP/s. Assumed: not interleaved.
      {"SC21 174.6B on 384", 96, 12288, 96, 2048, 8, 12, 384, 1536, 1, 76.78},
      {"SC21 174.6B on 768", 96, 12288, 96, 2048, 8, 12, 768, 1536, 1, 39.42},
      {"SC21 174.6B on 1536", 96, 12288, 96, 2048, 8, 12, 1536, 1536, 1, 20.83}};
  const Machine machine = published_machine();
  double sum = 0;
  for (const AssumedRow& row : rows) {
    const double error = std::abs(error_of(row, machine));
    EXPECT_LE(error, 8);
    sum += error;
  }
  EXPECT_LE(sum / std::size(rows), 5);
}

// MT-NLG's runs reach 113 to 126 TFLOP/s of a device, where the same model reaches 163 in the table
// above: another program, on which no constant here depends. The prediction is a quarter too fast.
TEST(MegatronRows, StepsOfMtNlgArePredictedTooFast) {
  const AssumedRow rows[] = {
      {"MT-NLG 530B on 2240", 128, 20480, 105, 2048, 8, 35, 2240, 1920, 1, 60.1},
      {"MT-NLG 530B on 2800", 128, 20480, 105, 2048, 8, 35, 2800, 1920, 1, 50.2},
      {"MT-NLG 530B on 3360", 128, 20480, 105, 2048, 8, 35, 3360, 1920, 1, 44.4}};
  for (const AssumedRow& row : rows) {
    const double error = error_of(row, published_machine());
    EXPECT_LT(error, -20);
    EXPECT_GT(error, -32);
  }
}

// They ran on devices of 80 GB.
TEST(MegatronRows, PublishedStepsFit) {
  const Machine machine = published_machine();
  for (const auto& [name, step] : published_steps())
    for (const Ledger& ledger :
         PlannedGpt(step.model, machine)
             .ledgers(step.strategy, micro_batches_of(step.strategy, step.batch)))
      EXPECT_LE(ledger.total(), machine.memory.value) << name << ", stage " << ledger.stage;
}

// TRESTLE_UPDATE_DOCS=1 draws it again.
TEST(MegatronRows, PictureOfTheDocumentIsCurrent) {
  const Machine machine = published_machine();
  vtrain::Predictor predict;
  ComparedPanel published{.title = "Measured: Megatron-LM's published steps",
                          .subtitle = "8 to 3,072 A100; nothing is fitted to them",
                          .least = 1,
                          .most = 1000,
                          .spread = machine.transformer.spread.value,
                          .radius = 4};
  for (const auto& [name, step] : published_steps())
    published.points.push_back({step.seconds, predict(machine, step), name});
  const auto rows = vtrain::steps();
  const auto order = vtrain::shuffled(rows.size(), 1);
  const auto others = vtrain::chosen(rows, order, 100, rows.size());
  ComparedPanel simulated{.title = "Simulated: vTrain's 1,340 other rows",
                          .subtitle = "1 to 8 A100; the constants are fitted to 100 rows",
                          .least = 0.01,
                          .most = 10,
                          .spread = machine.transformer.spread.value,
                          .radius = 1.5};
  const auto predicted = vtrain::predictions(vtrain::machine(), others);
  for (std::size_t i = 0; i < others.size(); ++i)
    simulated.points.push_back({others[i].seconds, predicted[i]});
  const std::string picture = to_svg_comparison(
      "How far predicted durations are from known ones; the band is 12 % on each side",
      {published, simulated});
  const std::string file = std::string(TRESTLE_SOURCE_DIR) + "/docs/pictures/plan_published.svg";
  if (std::getenv("TRESTLE_UPDATE_DOCS") != nullptr) write_file(file, picture);
  EXPECT_EQ(read_text_file(file), picture);
}

}  // namespace
}  // namespace trestle::plan
