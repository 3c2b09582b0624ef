// The techniques of the survey side by side, for GPTs by formulas.
#include "trestle/plan/choose/techniques.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/plan/vtrain.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/plan/choose/techniques_report.h"
#include "trestle/plan/conv/conv_models.h"
#include "trestle/plan/conv/planned_layers.h"
#include "trestle/plan/gpt/planned_gpt.h"

namespace trestle::plan {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

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

// The best of all is never slower than a technique alone that fits.
TEST_F(Techniques, NoneIsFasterThanTheBestOfAll) {
  const auto expect_slower = [&](const std::vector<TechniqueRow>& all) {
    const BestOfAll best = best_of_all(all, PlannedGpt(gpt_, machine_), machine_, request_);
    for (const TechniqueRow& one : all)
      if (one.plan) {
        EXPECT_GE(seconds(one), best.result.best.front().step.seconds * (1 - 1e-9)) << one.name;
      }
  };
  for (const int devices : {2, 8, 16}) expect_slower(rows(devices, 64));
  gpt_.layers = 2;
  machine_.between.bandwidth.value = 1e5;
  machine_.devices_per_node = 1;
  expect_slower(rows(8, 8));
  expect_slower(rows(6, 6));
}

TEST_F(Techniques, AreRankedByTheGoal) {
  gpt_.layers = 4;
  const auto by_time = rows(8, 64);
  for (const Goal goal : {Goal::Memory, Goal::Money}) {
    request_.goal = goal;
    machine_.price_per_hour = Figure{.value = 2.0};
    const auto all = rows(8, 64);
    const PlannedGpt model(gpt_, machine_);
    const BestOfAll best = best_of_all(all, model, machine_, request_);
    const Plan& taken = best.result.best.front();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all[i].plan) continue;
      EXPECT_FALSE(is_ahead(*all[i].plan, taken, goal) && all[i].name != "DataParallel")
          << all[i].name;
      EXPECT_EQ(all[i].plan->strategy.devices(), all[i].devices);
      if (goal == Goal::Memory && by_time[i].plan) {
        EXPECT_LE(peak(all[i]), peak(by_time[i])) << all[i].name;
      }
    }
    const TechniquesOf report{model, machine_, request_, all, best};
    EXPECT_THAT(techniques_report(report, 80),
                AllOf(HasSubstr(text("· by ", to_string(goal))),
                      HasSubstr(goal == Goal::Memory ? "smallest alone" : "cheapest alone")));
    EXPECT_EQ(nlohmann::json::parse(techniques_json(report))["best"]["goal"], to_string(goal));
  }
}

// To a search a row with all degrees and a micro-batch describes one run. A row is no run.
TEST_F(Techniques, KeepWhatTheRequestKeeps) {
  ASSERT_TRUE(machine_.host.has_value());
  gpt_.layers = 8;
  request_.kept.micro_batch = 2;
  const auto all = rows(8, 64);
  for (const TechniqueRow& one : all) {
    if (one.name == "model parallel") continue;
    ASSERT_TRUE(one.plan || one.too_large) << one.name << ": " << one.not_legal;
    EXPECT_EQ((one.plan ? one.plan->strategy : one.too_large->strategy).micro_batch, 2) << one.name;
  }
  EXPECT_EQ(row(all, "model parallel").not_legal,
            "it has micro_batch=64, and --keep has micro_batch=2");
  const BestOfAll best = best_of_all(all, PlannedGpt(gpt_, machine_), machine_, request_);
  EXPECT_EQ(best.result.best.front().strategy.micro_batch, 2);
}

TEST_F(Techniques, KeepRecomputationInAllRows) {
  gpt_.layers = 4;
  request_.kept.recompute = BlockRecompute::Selective;
  for (const TechniqueRow& one : rows(8, 64)) {
    if (one.plan) {
      EXPECT_EQ(one.plan->strategy.recompute, BlockRecompute::Selective) << one.name;
    }
    if (one.name == "checkpointing") {
      EXPECT_THAT(one.not_legal, HasSubstr("recompute=selective"));
    }
  }
}

TEST_F(Techniques, RefuseDegreesThatAreKept) {
  for (const char* words :
       {"tensor=2", "pipeline=2", "data=2", "level=1", "replicate=2", "offload=yes"}) {
    request_.kept = parse_kept({words});
    EXPECT_THROW(rows(8, 64), UsageError) << words;
  }
}

// With slow links one device is the fastest of eight.
TEST_F(Techniques, BestOfAllMayUseFewerDevices) {
  gpt_.layers = 2;
  machine_.between.bandwidth.value = 1e5;
  machine_.devices_per_node = 1;
  const auto all = rows(8, 8);
  const PlannedGpt model(gpt_, machine_);
  const BestOfAll best = best_of_all(all, model, machine_, request_);
  EXPECT_EQ(best.request.devices, 1);
  EXPECT_EQ(best.result.best.front().strategy.devices(), 1);
  EXPECT_DOUBLE_EQ(best.result.best.front().step.seconds, seconds(row(all, "one device")));
  const TechniquesOf report{model, machine_, request_, all, best};
  const std::string words = techniques_report(report, 80);
  EXPECT_THAT(words,
              AllOf(HasSubstr("8 devices of"), HasSubstr("take: one device · 1 of 8 devices · ")));
  EXPECT_EQ(nlohmann::json::parse(techniques_json(report))["best"]["devices"], 1);
}

// A number of devices that no strategy can use leaves the other rows.
TEST_F(Techniques, BestOfAllNeedsNoStrategyOfAllDevices) {
  gpt_.layers = 4;
  const auto all = rows(7, 8);
  const PlannedGpt model(gpt_, machine_);
  EXPECT_EQ(best_of_all(all, model, machine_, request_).request.devices, 1);
}

TEST_F(Techniques, OffloadOnlyWhereItIsTheTechnique) {
  ASSERT_TRUE(machine_.host.has_value());
  request_.memory = 24.0 * (1 << 30);  // DDP, ZeRO-1 and ZeRO-2 do not fit
  for (const TechniqueRow& one : rows(8, 64)) {
    if (!one.plan && !one.too_large) continue;
    const Strategy& strategy = one.plan ? one.plan->strategy : one.too_large->strategy;
    EXPECT_EQ(strategy.offload, one.name == "offload") << one.name;
    EXPECT_EQ(strategy.replicate > 1, one.name == "HSDP") << one.name;
  }
}

TEST_F(Techniques, OneDeviceHasOnlyCheckpointing) {
  for (const TechniqueRow& one : rows(1, 8))
    EXPECT_EQ(one.not_legal.empty(), one.name == "one device" || one.name == "checkpointing")
        << one.name;
}

TEST_F(Techniques, DataParallelCopiesWeightsThatDoNotFit) {
  const auto all = rows(8, 64);
  ASSERT_TRUE(row(all, "DataParallel").too_large && row(all, "DDP").too_large);
  const double reduction = all_reduce_seconds(machine_, 2 * parameters_of(gpt_), {8, 8, 1});
  EXPECT_NEAR(seconds(row(all, "DataParallel")) - seconds(row(all, "DDP")), reduction / 2,
              0.02 * reduction);
}

TEST_F(Techniques, LayersByFormulasSayTheirRules) {
  request_ = {.devices = 8, .batch = 64};
  const PlannedLayers unet(parse_unet(""), machine_);
  const auto all = compare_techniques(unet, machine_, request_);
  for (const char* name : {"ZeRO-1", "ZeRO-2", "ZeRO-3, FSDP", "HSDP", "offload"})
    EXPECT_THAT(row(all, name).not_legal, HasSubstr("layers by formulas have no ")) << name;
  EXPECT_THAT(row(all, "tensor parallel").not_legal, HasSubstr("are not split over"));
  EXPECT_THAT(row(all, "checkpointing").not_legal, HasSubstr("recomputes nothing in one stage"));
}

TEST_F(Techniques, AreReportedWithWhatFits) {
  const auto all = rows(8, 64);
  const PlannedGpt model(gpt_, machine_);
  const BestOfAll best = best_of_all(all, model, machine_, request_);
  const TechniquesOf report{model, machine_, request_, all, best};
  const std::string words = techniques_report(report, 80);
  EXPECT_THAT(words, AllOf(HasSubstr("\nZeRO-3, FSDP"), HasSubstr(" too large"), HasSubstr("when "),
                           HasSubstr("\ntake: "), HasSubstr("simulated")));
  const auto json = nlohmann::json::parse(techniques_json(report));
  EXPECT_EQ(json["techniques"].size(), all.size());
  EXPECT_EQ(json["techniques"][0]["fits"], false);
  EXPECT_DOUBLE_EQ(json["techniques"][4]["peak_bytes"].get<double>(), std::round(peak(all[4])));
  EXPECT_DOUBLE_EQ(json["best"]["predicted_step_seconds"].get<double>(),
                   best.result.best.front().step.seconds);
}

TEST_F(Techniques, AreReportedWithoutABudget) {
  gpt_.layers = 2;
  machine_.memory.value = std::numeric_limits<double>::max();
  const auto all = rows(2, 8);
  const PlannedGpt model(gpt_, machine_);
  const BestOfAll best = best_of_all(all, model, machine_, request_);
  EXPECT_THAT(techniques_report({model, machine_, request_, all, best}, 80),
              AllOf(HasSubstr(" · no limit of memory · "), HasSubstr("fits, no limit"),
                    Not(HasSubstr("EiB"))));
}

}  // namespace
}  // namespace trestle::plan
