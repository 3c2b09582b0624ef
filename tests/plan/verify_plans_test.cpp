#include "trestle/plan/verify/verify_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/plan/verify/measured_line.h"
#include "trestle/plan/verify/verify_report.h"

namespace trestle::plan {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

VerifiedPlan predicted(int pipeline, double seconds, double peak) {
  return {.strategy = {.pipeline = pipeline}, .predicted_seconds = seconds, .predicted_peak = peak};
}

Machine machine_with_spread(double spread) {
  Machine machine;
  machine.transformer.spread.value = spread;
  return machine;
}

// Two plans in three rounds. The first takes 1.0, 1.2 and 1.1 s, the second 0.9, 1.0 and 0.95 s.
Verification two_plans() {
  std::vector<std::vector<double>> seconds = {{1.0, 1.2, 1.1}, {0.9, 1.0, 0.95}};
  std::vector<std::size_t> rounds = {0, 0};
  return verify_plans({predicted(1, 1.21, 100), predicted(2, 1.3, 80)}, {.rounds = 3},
                      [&](std::size_t plan) {
                        return MeasuredRun{.seconds = seconds[plan][rounds[plan]++],
                                           .peaks = {{"virtual:0", 50}, {"virtual:1", 80}}};
                      });
}

TEST(VerifyPlans, RunsEachPlanInTurn) {
  std::vector<std::size_t> order;
  std::vector<std::int64_t> told;
  const Verification result =
      verify_plans({predicted(1, 1, 1), predicted(2, 2, 1), predicted(4, 3, 1)},
                   {.rounds = 2,
                    .progress =
                        [&](auto, auto done, auto all) {
                          told.insert(told.end(), {done, all});
                        }},
                   [&](std::size_t plan) {
                     order.push_back(plan);
                     return MeasuredRun{.seconds = 1};
                   });
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(told, ElementsAre(0, 6, 1, 6, 2, 6, 3, 6, 4, 6, 5, 6));
  EXPECT_TRUE(result.finished);
}

TEST(VerifyPlans, ComparesMediansAndPeaks) {
  const Verification result = two_plans();
  const VerifiedPlan& pick = result.plans[0];
  EXPECT_EQ(pick.seconds(), 1.1);
  EXPECT_THAT(pick.time_error(), DoubleNear(0.1, 1e-12));
  EXPECT_THAT(pick.spread(), DoubleNear(0.2 / 1.1, 1e-12));
  EXPECT_EQ(pick.peak(), 80);
  EXPECT_EQ(pick.peak_error(), 0.25);
  EXPECT_EQ(result.plans[1].peak_error(), 0);
  EXPECT_EQ(result.best(), 1U);
  EXPECT_THAT(*result.regret(), DoubleNear(1.1 / 0.95 - 1, 1e-12));
  EXPECT_THAT(result.mean_time_error(), DoubleNear((0.1 + 1.3 / 0.95 - 1) / 2, 1e-12));
}

TEST(VerifyPlans, AFailureDoesNotStopTheOtherPlans) {
  int failing = 0;
  const Verification result =
      verify_plans({predicted(1, 1, 1), predicted(2, 2, 1)}, {.rounds = 2}, [&](std::size_t plan) {
        if (plan == 1) return MeasuredRun{.seconds = 1};
        ++failing;
        return MeasuredRun{.error = "virtual:0 is out of memory\nfree some"};
      });
  EXPECT_EQ(failing, 1);
  EXPECT_TRUE(result.finished);
  EXPECT_FALSE(result.plans[0].measured());
  EXPECT_EQ(result.plans[1].runs.size(), 2U);
  EXPECT_EQ(result.best(), 1U);
  EXPECT_FALSE(result.regret());
  const std::string report = verify_report(result, machine_with_spread(0.1), 100);
  EXPECT_THAT(report, HasSubstr("failed: virtual:0 is out of memory\n    free some\n"));
  const auto json = nlohmann::json::parse(verify_json(result, machine_with_spread(0.1)));
  EXPECT_EQ(json["plans"][0]["error"], "virtual:0 is out of memory\nfree some");
  EXPECT_TRUE(json["regret"].is_null());
}

TEST(VerifyPlans, StopsBetweenRunsAndInOne) {
  int asked = 0;
  Verification result = verify_plans({predicted(1, 1, 1), predicted(2, 2, 1)},
                                     {.rounds = 2, .should_stop = [&] { return ++asked == 4; }},
                                     [&](std::size_t) { return MeasuredRun{.seconds = 1}; });
  EXPECT_FALSE(result.finished);
  EXPECT_EQ(result.plans[0].runs.size(), 2U);
  EXPECT_EQ(result.plans[1].runs.size(), 1U);
  result = verify_plans({predicted(1, 1, 1)}, {.rounds = 2},
                        [](std::size_t) { return std::optional<MeasuredRun>(); });
  EXPECT_FALSE(result.finished);
  EXPECT_FALSE(result.best());
  EXPECT_THAT(verify_report(result, machine_with_spread(0.1), 100), HasSubstr("Stopped"));
  EXPECT_THROW(verify_plans({}, {.rounds = 0}, {}), UsageError);
}

// Simulated and measured figures have columns of their own.
TEST(VerifyPlans, ReportNamesThePickAndTheErrors) {
  const std::string report = verify_report(two_plans(), machine_with_spread(0.15), 100);
  EXPECT_THAT(report, HasSubstr("simulated  measured"));
  EXPECT_THAT(report, HasSubstr("1.2 s     1.1 s    +10 %   18.2 %"));
  EXPECT_THAT(report,
              HasSubstr("Plan 2 is the fastest that was measured. Plan 1, the pick, is 15.8 % "
                        "slower, which is within the\nrange of their own runs, 18.2 %."));
  EXPECT_THAT(report, HasSubstr("1 of 2 measured times lie in the range"));
  const auto json = nlohmann::json::parse(verify_json(two_plans(), machine_with_spread(0.15)));
  EXPECT_EQ(json["pick_is_best"], false);
  EXPECT_EQ(json["in_range"], 1);
  EXPECT_EQ(json["plans"][0]["measured_runs_seconds"].size(), 3U);
  EXPECT_EQ(json["plans"][0]["simulated_step_seconds"], 1.21);
  EXPECT_EQ(json["plans"][0]["measured_peak_bytes"], 80);
}

TEST(VerifyPlans, DevicesWithoutMetersHaveNoPeak) {
  const Verification result = verify_plans({predicted(1, 1, 100)}, {.rounds = 1},
                                           [](std::size_t) { return MeasuredRun{.seconds = 1}; });
  EXPECT_EQ(result.mean_peak_error(), 0);
  EXPECT_THAT(verify_report(result, machine_with_spread(0.1), 100), HasSubstr("no meter"));
  EXPECT_THAT(verify_json(result, machine_with_spread(0.1)), Not(HasSubstr("measured_peak")));
}

TEST(MeasuredLine, IsFoundAmongOtherLines) {
  const MeasuredRun run = measured_run_of(
      "{\"event\": \"note\", \"text\": \"measured\"}\nplain words\n"
      "{\"event\":\"measured\",\"seconds\":[0.3,0.1,0.2],\"optimizer_seconds\":0.05,"
      "\"peaks\":[{\"device\":\"virtual:1\",\"measured_bytes\":4096}]}\n");
  EXPECT_THAT(run.seconds, DoubleNear(0.25, 1e-12));
  ASSERT_EQ(run.peaks.size(), 1U);
  EXPECT_EQ(run.peaks[0].device, "virtual:1");
  EXPECT_EQ(run.peaks[0].bytes, 4096);
}

// `trestle launch`, torchrun and `srun -l` put the rank before each line.
TEST(MeasuredLine, IsFoundBehindThePrefixOfALauncher) {
  const std::string line =
      R"({"event":"measured","seconds":[0.5],"optimizer_seconds":0.25,"peaks":[]})";
  for (const char* prefix : {"[0] ", "0: ", "[default0]:", "  ", ""}) {
    const MeasuredRun run = measured_run_of(text("[1] {\"event\":\"note\"}\n", prefix, "begins\n",
                                                 prefix, line, "\r\n", prefix, "ends\n"));
    EXPECT_EQ(run.seconds, 0.75) << prefix;
  }
  EXPECT_THROW(measured_run_of("[0] {" + line), FormatError);
}

// Processes that a launcher has not joined to one run measure one step each.
TEST(MeasuredLine, SeveralAreRefused) {
  const std::string line =
      "{\"event\":\"measured\",\"seconds\":[1],\"optimizer_seconds\":0,\"peaks\":[]}\n";
  try {
    measured_run_of("[0] " + line + "[1] " + line);
    FAIL() << "two lines are accepted";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("not the ranks of one run"));
  }
}

TEST(MeasuredLine, OtherOutputIsRefused) {
  const std::string begin = "{\"event\":\"measured\",";
  for (const std::string& output :
       {std::string(), std::string("[1]\n7\n{\"event\": 3}\n"), begin,
        begin + "\"seconds\":[],\"optimizer_seconds\":0,\"peaks\":[]}",
        begin + "\"seconds\":[-1],\"optimizer_seconds\":0,\"peaks\":[]}",
        begin + "\"seconds\":[1e300],\"optimizer_seconds\":0,\"peaks\":[]}",
        begin + "\"seconds\":[1],\"peaks\":[]}",
        begin + "\"seconds\":[1],\"optimizer_seconds\":0,\"peaks\":{}}",
        begin + "\"seconds\":[1],\"optimizer_seconds\":0,\"peaks\":[{\"device\":1}]}"})
    EXPECT_THROW(measured_run_of(output), FormatError) << output;
}

}  // namespace
}  // namespace trestle::plan
