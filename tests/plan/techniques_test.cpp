// The techniques of the survey side by side, for GPTs by formulas.
#include "trestle/plan/choose/techniques.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/plan/vtrain.h"
#include "trestle/base/text.h"
#include "trestle/plan/choose/techniques_report.h"
#include "trestle/plan/gpt/planned_gpt.h"

namespace trestle::plan {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const GptModel gpt_of_7_billion = {
    .layers = 32, .hidden = 4096, .heads = 32, .sequence = 2048, .vocabulary = 51200};

class Techniques : public testing::Test {
 protected:
  std::vector<TechniqueRow> rows(int devices, std::int64_t batch) {
    request_.devices = devices;
    request_.batch = batch;
    return compare_techniques(PlannedGpt(gpt_, machine_), machine_, request_);
  }
  static const TechniqueRow& row(const std::vector<TechniqueRow>& rows, const std::string& name) {
    return *std::find_if(rows.begin(), rows.end(),
                         [&](const auto& one) { return one.name == name; });
  }
  static double peak(const TechniqueRow& one) {
    return one.plan ? one.plan->worst.total() : one.too_large->worst.total();
  }
  static double seconds(const TechniqueRow& one) {
    return one.plan ? one.plan->step.seconds : one.too_large_step.seconds;
  }

  GptModel gpt_ = gpt_of_7_billion;
  Machine machine_ = vtrain::machine();
  PlanRequest request_ = {};
};

TEST_F(Techniques, AreThoseOfTheSurveyInItsOrder) {
  std::vector<std::string> names;
  for (const TechniqueRow& one : rows(8, 64)) {
    names.push_back(one.name);
    EXPECT_FALSE(one.when.empty());
    EXPECT_EQ(1, one.plan.has_value() + one.too_large.has_value() + !one.not_legal.empty());
  }
  EXPECT_THAT(names, ElementsAre("one device", "model parallel", "pipeline", "DataParallel", "DDP",
                                 "ZeRO-1", "ZeRO-2", "ZeRO-3, FSDP", "HSDP", "tensor parallel",
                                 "checkpointing", "offload"));
}

// 16 P bytes on each device, 4 P + 12 P / 8, 2 P + 14 P / 8 and 16 P / 8.
TEST_F(Techniques, HoldTheBytesOfZerosTable) {
  const auto all = rows(8, 64);
  const double p = parameters_of(gpt_);
  const auto states = [](const TechniqueRow& one) {
    const Ledger& worst = one.plan ? one.plan->worst : one.too_large->worst;
    return worst.parameters + worst.gradients + worst.optimizer;
  };
  EXPECT_NEAR(states(row(all, "one device")), 16 * p, 1e-3 * p);
  EXPECT_NEAR(states(row(all, "DDP")), 16 * p, 1e-3 * p);
  EXPECT_NEAR(states(row(all, "ZeRO-1")), (4 + 12.0 / 8) * p, 1e-3 * p);
  EXPECT_NEAR(states(row(all, "ZeRO-2")), (2 + 14.0 / 8) * p, 1e-3 * p);
  EXPECT_NEAR(states(row(all, "ZeRO-3, FSDP")), 16.0 / 8 * p, 1e-3 * p);
  EXPECT_NEAR(states(row(all, "HSDP")), 16.0 / 4 * p, 1e-3 * p);
}

// One device computes at a time: as long as one device alone, and the messages.
TEST_F(Techniques, ModelParallelTakesAsLongAsOneDevice) {
  gpt_.layers = 8;
  const auto all = rows(8, 8);
  EXPECT_GE(seconds(row(all, "model parallel")), 0.95 * seconds(row(all, "one device")));
  EXPECT_LT(seconds(row(all, "pipeline")), 0.6 * seconds(row(all, "model parallel")));
}

TEST_F(Techniques, DataParallelAddsTheCopiesOfItsWeights) {
  gpt_.layers = 4;
  const auto all = rows(8, 64);
  const Plan& ddp = *row(all, "DDP").plan;
  const Plan& data_parallel = *row(all, "DataParallel").plan;
  const double reduction = all_reduce_seconds(machine_, 2 * parameters_of(gpt_), {8, 8, 1});
  EXPECT_NEAR(data_parallel.step.seconds - ddp.step.seconds, reduction / 2, 0.02 * reduction);
  EXPECT_NEAR(data_parallel.samples_per_second * data_parallel.step.seconds, 64, 1e-6);
  EXPECT_THAT(row(rows(16, 64), "DataParallel").not_legal, HasSubstr("8 of 16"));
}

// `trestle plan --keep` finds the row's plan again.
TEST_F(Techniques, AreFoundAgainByWhatTheyKeep) {
  gpt_.layers = 8;
  const PlannedGpt model(gpt_, machine_);
  for (const TechniqueRow& one : rows(8, 64)) {
    if (!one.plan || one.name == "DataParallel") continue;
    const PlanResult found = find_plans(
        model, machine_,
        {.devices = one.devices, .batch = 64, .kept = parse_kept({to_string(one.kept)})});
    EXPECT_EQ(found.best.front().strategy, one.plan->strategy) << one.name;
  }
}

// The best of all strategies is never slower than a technique alone.
TEST_F(Techniques, NoneIsFasterThanTheBestOfAll) {
  for (const int devices : {2, 8, 16}) {
    const PlannedGpt model(gpt_, machine_);
    const auto all = rows(devices, 64);
    const PlanResult best = find_plans(model, machine_, request_);
    for (const TechniqueRow& one : all)
      if (one.plan) {
        EXPECT_GE(one.plan->step.seconds, best.best.front().step.seconds * (1 - 1e-9)) << one.name;
      }
  }
}

TEST_F(Techniques, OneDeviceHasNoOthers) {
  for (const TechniqueRow& one : rows(1, 8))
    if (one.name != "one device") {
      EXPECT_FALSE(one.not_legal.empty()) << one.name;
    }
}

TEST_F(Techniques, AreReportedWithWhatFits) {
  const auto all = rows(8, 64);
  const PlannedGpt model(gpt_, machine_);
  const PlanResult result = find_plans(model, machine_, request_);
  const ReportOf report{model, machine_, request_, result};
  const std::string words = techniques_report(all, report, 80);
  EXPECT_THAT(words, AllOf(HasSubstr("\nZeRO-3, FSDP"), HasSubstr(" too large"), HasSubstr("when "),
                           HasSubstr("\ntake: "), HasSubstr("simulated")));
  const auto json = nlohmann::json::parse(techniques_json(all, report));
  EXPECT_EQ(json["techniques"].size(), all.size());
  EXPECT_EQ(json["techniques"][0]["fits"], false);
  EXPECT_DOUBLE_EQ(json["techniques"][4]["peak_bytes"].get<double>(), std::round(peak(all[4])));
  EXPECT_DOUBLE_EQ(json["best"]["predicted_step_seconds"].get<double>(),
                   result.best.front().step.seconds);
}

}  // namespace
}  // namespace trestle::plan
