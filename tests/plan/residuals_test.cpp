#include "trestle/plan/verify/residuals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/random.h"
#include "trestle/plan/search/plan_report.h"

namespace trestle::plan {
namespace {

using testing::HasSubstr;

Residual with_error(double error) {
  return {.model = "unet",
          .strategy = "tensor 2",
          .machine = "CPU, 2 cores",
          .version = "1",
          .predicted_seconds = 1 + error,
          .measured_seconds = 1,
          .spread = 0.01};
}

std::vector<Residual> with_errors(const std::vector<double>& errors) {
  std::vector<Residual> residuals;
  for (const double error : errors) residuals.push_back(with_error(error));
  return residuals;
}

TEST(Residuals, AreReadAsTheyWereWritten) {
  const std::vector<Residual> written = {with_error(0.1), with_error(-0.05)};
  const std::string lines = to_json_lines(written);
  const std::vector<Residual> read = parse_residuals(lines, "steps.jsonl");
  ASSERT_EQ(read.size(), 2U);
  EXPECT_EQ(read[1].predicted_seconds, 0.95);
  EXPECT_EQ(read[1].strategy, "tensor 2");
  EXPECT_EQ(to_json_lines(read), lines);
}

TEST(Residuals, FailedPlansGiveNone) {
  Verification verification;
  verification.plans = {{.predicted_seconds = 2, .runs = {1, 4, 3}},
                        {.predicted_seconds = 2, .error = "failed"}};
  const auto residuals = residuals_of(verification, with_error(0));
  ASSERT_EQ(residuals.size(), 1U);
  EXPECT_EQ(residuals[0].measured_seconds, 3);
  EXPECT_EQ(residuals[0].spread, 1);
  EXPECT_EQ(residuals[0].model, "unet");
}

// The bound for a further error is the tenth smallest of ten, ceil(0.9 x 11), and the eighteenth of
// nineteen.
TEST(Residuals, SpreadIsTheSmallestErrorThatNineOfTenStayBelow) {
  std::vector<double> errors;
  for (int i = 1; i <= 10; ++i) errors.push_back(i % 2 == 0 ? 0.01 * i : -0.01 * i);
  EXPECT_NEAR(spread_of(with_errors(errors)).value, 0.10, 1e-12);
  for (int i = 11; i <= 19; ++i) errors.push_back(0.01 * i);
  const Figure spread = spread_of(with_errors(errors));
  EXPECT_NEAR(spread.value, 0.18, 1e-12);
  EXPECT_EQ(spread.origin, Origin::Measured);
  EXPECT_THAT(spread.from, HasSubstr("19 steps that were measured"));
  EXPECT_THAT(spread.from, HasSubstr("18 of them"));  // all but the largest
}

TEST(Residuals, FewStepsGiveAnAssumedRange) {
  const Figure spread = spread_of(with_errors({0.02, -0.3, 0.1}));
  EXPECT_NEAR(spread.value, 0.3, 1e-12);
  EXPECT_EQ(spread.origin, Origin::Assumed);
  EXPECT_THROW(spread_of({}), UsageError);
}

// Errors of the same kind: 37 of 41 further ones lie in the range of 40, over many draws. The share
// of 2,000 draws has a standard deviation of 0.7 %.
TEST(Residuals, NineOfTenFurtherStepsLieInTheRange) {
  Random random(7);
  const auto error = [&] { return random.uniform(-0.2, 0.3); };
  int within = 0, all = 0;
  for (int draw = 0; draw < 2000; ++draw) {
    std::vector<double> errors(40);
    for (double& one : errors) one = error();
    Machine machine;
    machine.transformer.spread = spread_of(with_errors(errors));
    const double further = 1 / (1 + error());  // measured, where 1 s was predicted
    within += further >= least_seconds(1, machine) && further <= most_seconds(1, machine) ? 1 : 0;
    ++all;
  }
  EXPECT_NEAR(static_cast<double>(within) / all, 37.0 / 41, 0.02);
}

TEST(Residuals, OtherMachinesAndVersionsAreRefusedByName) {
  const std::vector<Residual> residuals = {with_error(0.1)};
  Residual here = with_error(0);
  check_residuals(residuals, here, "steps.jsonl");
  here.machine = "CPU, 64 cores";
  try {
    check_residuals(residuals, here, "steps.jsonl");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'CPU, 2 cores', and this is 'CPU, 64 cores'"));
  }
  here = with_error(0);
  here.version = "2";
  EXPECT_THROW(check_residuals(residuals, here, "steps.jsonl"), UsageError);
}

TEST(Residuals, BadLinesAreNamed) {
  const std::string good = to_json_lines({with_error(0.1)});
  const auto message = [&](const std::string& line) -> std::string {
    try {
      parse_residuals(good + line, "steps.jsonl");
    } catch (const UsageError& error) {  // as for a machine's file
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message("{\"model\": 3}\n"), HasSubstr("steps.jsonl:2"));
  EXPECT_THAT(message("{\"model\": 3}\n"), HasSubstr("no text 'model'"));
  EXPECT_THAT(message("[]\n"), HasSubstr("no JSON object"));
  EXPECT_THAT(message("{\"mod"), HasSubstr("has no end"));
  std::string negative = good;
  negative.replace(negative.find("\"measured_seconds\":1"), 20, "\"measured_seconds\":-1");
  EXPECT_THAT(message(negative), HasSubstr("'measured_seconds' is -1"));
}

}  // namespace
}  // namespace trestle::plan
