// The time model of plan/gpt against vTrain's single_node.csv, which is the output of a simulator.
// tests/plan/megatron_rows_test.cpp has measured steps.
#include "tests/plan/vtrain.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <set>

#include "trestle/base/files.h"

namespace trestle::plan {
namespace {

using namespace vtrain;

constexpr std::size_t known = 100;  // of 1,440 rows
constexpr std::uint64_t seeds[] = {1, 2, 3, 4, 5};

const std::vector<KnownStep>& rows() {
  static const std::vector<KnownStep> rows = steps();
  return rows;
}

Machine fitted(std::uint64_t seed) {
  return fit_times(machine(), chosen(rows(), shuffled(rows().size(), seed), 0, known));
}

// The error of all rows except these.
double mape_without(const std::set<std::size_t>& left_out, const std::vector<double>& predicted) {
  std::vector<KnownStep> steps;
  std::vector<double> seconds;
  for (std::size_t row = 0; row < rows().size(); ++row) {
    if (left_out.contains(row)) continue;
    steps.push_back(rows()[row]);
    seconds.push_back(predicted[row]);
  }
  return mape(steps, seconds);
}

TEST(VTrain, ShippedTablesAreTheMeasuredOnes) {
  const Machine shipped = machine();
  ASSERT_EQ(shipped.all_reduce.size(), 3U);
  for (const CollectiveTable& table : shipped.all_reduce) {
    std::map<double, double> seconds;
    for (const auto& row : read_csv(text("allreduce/", table.ranks, ".csv")))
      seconds[std::stod(row.at(0))] = std::stod(row.at(5)) / 1e9;
    EXPECT_EQ(table.origin, Origin::Measured);
    for (std::size_t i = 0; i < table.bytes.size(); ++i)
      EXPECT_DOUBLE_EQ(table.seconds[i], seconds.at(table.bytes[i])) << table.ranks;
    // Sizes that are left out lie close to the lines between.
    for (const auto& [bytes, measured] : seconds)
      EXPECT_NEAR(all_reduce_seconds(shipped, bytes, {table.ranks, table.ranks, 1}) / measured, 1,
                  0.35)
          << table.ranks << " ranks, " << bytes << " bytes";
  }
}

// With TRESTLE_UPDATE_MACHINES=1 the test prints the constants instead.
TEST(VTrain, ShippedConstantsAreThoseOfTheFirstSeed) {
  Machine shipped = machine(), refitted = fitted(1);
  const auto constants = [](const Machine& m) {
    const TransformerTimes& t = m.transformer;
    return std::vector<Figure>{t.matrix_efficiency, t.product_cost, t.score_passes,
                               t.activation_passes, t.layer_floor,  t.head_efficiency,
                               t.step_seconds};
  };
  const auto ours = constants(shipped), again = constants(refitted);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_NEAR(ours[i].value / again[i].value, 1, 1e-3) << i << ": " << again[i].value;
    EXPECT_EQ(ours[i].origin, Origin::Simulated);
    if (std::getenv("TRESTLE_UPDATE_MACHINES") != nullptr)
      std::cout << std::setprecision(6) << again[i].value << "\n";
  }
}

TEST(VTrain, OtherRowsOfFiveSeeds) {
  for (const std::uint64_t seed : seeds) {
    const Machine machine = fitted(seed);
    const auto predicted = predictions(machine, rows());
    const auto order = shuffled(rows().size(), seed);
    const double error = mape_without({order.begin(), order.begin() + known}, predicted);
    const Picks picked = picks(rows(), predicted);
    std::cout << "seed " << seed << ": MAPE " << error << " %, regret " << picked.regret
              << " %, exact " << picked.exact << " of " << picked.groups << "\n";
    EXPECT_LE(error, 6.5) << seed;
    EXPECT_EQ(picked.groups, 136);
    EXPECT_LE(picked.regret, 4) << seed;
    EXPECT_GE(picked.exact, 80) << seed;
  }
}

TEST(VTrain, ShapesThatTheFitHasNotSeen) {
  std::set<Shape> all;
  for (const KnownStep& step : rows()) all.insert(shape_of(step));
  const std::vector<Shape> shapes(all.begin(), all.end());
  ASSERT_EQ(shapes.size(), 32U);
  for (const std::uint64_t seed : seeds) {
    const auto order = shuffled(shapes.size(), seed), of_rows = shuffled(rows().size(), seed);
    double sum = 0;
    for (std::size_t fold = 0; fold < 4; ++fold) {
      std::set<Shape> left_out;
      for (std::size_t i = 8 * fold; i < 8 * fold + 8; ++i) left_out.insert(shapes[order[i]]);
      std::vector<KnownStep> seen, unseen;
      for (const std::size_t row : of_rows) {
        const bool out = left_out.contains(shape_of(rows()[row]));
        if (out) unseen.push_back(rows()[row]);
        if (!out && seen.size() < known) seen.push_back(rows()[row]);
      }
      sum += mape(unseen, predictions(fit_times(machine(), seen), unseen));
    }
    std::cout << "seed " << seed << ": MAPE of shapes left out " << sum / 4 << " %\n";
    EXPECT_LE(sum / 4, 8) << seed;
  }
}

// The rows of the fit stand for profiles of their shapes, and one more row of each other shape.
TEST(VTrain, ProfileOfEachShape) {
  for (const std::uint64_t seed : seeds) {
    const auto order = shuffled(rows().size(), seed);
    std::set<std::size_t> used(order.begin(), order.begin() + known);
    std::set<Shape> shapes;
    for (const std::size_t row : order)
      if (shapes.insert(shape_of(rows()[row])).second) used.insert(row);
    std::vector<KnownStep> profiled;
    for (const std::size_t row : used) profiled.push_back(rows()[row]);
    Machine machine = fitted(seed);
    // The constants of the head and of the step are fitted again beside the profiles.
    for (int round = 0; round < 3; ++round)
      machine = fit_times(profile_blocks(machine, profiled), profiled);
    machine = profile_blocks(machine, profiled);
    const auto predicted = predictions(machine, rows());
    const double error = mape_without(used, predicted);
    const Picks picked = picks(rows(), predicted);
    std::cout << "seed " << seed << ": MAPE " << error << " %, regret " << picked.regret
              << " %, exact " << picked.exact << "\n";
    EXPECT_LE(error, 2.5) << seed;
    EXPECT_LE(picked.regret, 0.5) << seed;
  }
}

// The same for longer pipelines, with equal and unequal stages.
TEST(VTrain, ClosedFormIsTheSimulatorsTimeOfLongPipelines) {
  Machine without = machine();
  without.inside.bandwidth.value = without.between.bandwidth.value = 1e30;
  without.inside.latency.value = without.between.latency.value = 0;
  for (const char* schedule : {"1f1b", "gpipe"})
    for (const int pipeline : {2, 5, 8, 16})
      for (const int micro_batches : {1, 3, 8, 40}) {
        const KnownStep step{
            .model =
                {.layers = 16, .hidden = 1024, .heads = 16, .sequence = 512, .vocabulary = 51200},
            .strategy = {.tensor = 2, .pipeline = pipeline, .micro_batch = 2, .schedule = schedule},
            .batch = 2 * micro_batches};
        const double simulated =
            predict_step(step.strategy, micro_batches,
                         PlannedGpt(step.model, without).costs(step.strategy, micro_batches))
                .seconds;
        const double closed = pipeline_seconds(without, step);
        const bool equal_layers = 16 % pipeline == 0;
        EXPECT_NEAR(simulated, closed, (equal_layers ? 1e-9 : 0.05) * simulated)
            << to_string(step.strategy) << ", " << micro_batches;
        EXPECT_LE(simulated, closed * (1 + 1e-9)) << to_string(step.strategy);
      }
}

// The closed form that the fit uses is the simulator's time, for all strategies of the file.
TEST(VTrain, ClosedFormIsTheSimulatorsTime) {
  Predictor predict;
  const Machine with_messages = machine();
  Machine without = with_messages;
  without.inside.bandwidth.value = without.between.bandwidth.value = 1e30;
  double worst = 0;
  for (const KnownStep& step : rows()) {
    const double closed = pipeline_seconds(without, step);
    EXPECT_NEAR(predict(without, step), closed, 1e-9 * closed) << to_string(step.strategy);
    worst = std::max(
        worst, std::abs(predict(with_messages, step) / pipeline_seconds(with_messages, step) - 1));
  }
  std::cout << "with messages, at most " << 100 * worst << " % apart\n";
  EXPECT_LE(worst, 0.05);
}

}  // namespace
}  // namespace trestle::plan
