#include "trestle/plan/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trestle/schedule/generate.h"
#include "trestle/simulate/simulate.h"

namespace trestle::plan {
namespace {

using schedule::Recompute;
using simulate::Costs;
using testing::HasSubstr;
using testing::Not;

// Two stages of a GPipe plan with 2 micro-batches of 8 samples.
FitQuestion two_stages(const std::string& name = "gpipe") {
  return {.lower =
              [name](int micro_batches, const std::vector<Recompute>& recompute) {
                return schedule::lower(
                    schedule::generate(name, {.stages = 2, .micro_batches = micro_batches}),
                    {.recompute = recompute});
              },
          .samples = 16,
          .micro_batches = 2,
          .other_micro_batches = {4, 8, 16},
          .recompute = {Recompute::Never, Recompute::Never},
          .budgets = {1000, 1000}};
}

Costs costs() {
  Costs costs = simulate::unit_costs(2);
  for (auto& stage : costs.stages) {
    stage.persistent = 100;
    stage.saved = 400;
    stage.kept_for_recompute = 10;
    stage.transient_forward = 40;
    stage.transient_backward = 200;
  }
  return costs;
}

TEST(Fit, MoreMicroBatchesShrinkTransientMemory) {
  FitQuestion question = two_stages();  // needs 100 + 800 + 200
  const std::string advice = suggest_fit(question, costs());
  // 4 micro-batches: 100 + 4 x 200 + 100; 8: 100 + 8 x 100 + 50, 950 x 1.05 < 1000; always: 710.
  EXPECT_EQ(advice,
            "It would fit with micro_batches = 8 (predicted peak 950 B of 1000 B) or "
            "recompute = \"always\" (predicted peak 710 B of 1000 B).");
}

TEST(Fit, SuggestsBothOnlyIfNeitherAloneFits) {
  FitQuestion question = two_stages();
  question.budgets = {600, 600};
  const std::string advice = suggest_fit(question, costs());
  EXPECT_THAT(advice, HasSubstr("It would fit with recompute = \"always\" and micro_batches = 4 "));
  EXPECT_THAT(advice, Not(HasSubstr(" or ")));
}

TEST(Fit, RequiresEveryDeviceToFit) {
  FitQuestion question = two_stages();
  Costs uneven = costs();
  uneven.stages[1].persistent = 980;  // stage 1 is too large in any case
  EXPECT_THAT(suggest_fit(question, uneven), HasSubstr("move layers to other stages"));
  question.budgets[1] = 0;  // no limit
  EXPECT_THAT(suggest_fit(question, uneven), HasSubstr("It would fit with"));
}

TEST(Fit, AddsUpTheStagesOfADevice) {
  FitQuestion question = two_stages();
  Costs shared = costs();
  shared.device_of_stage = {0, 0};
  question.budgets = {1000};
  EXPECT_THAT(suggest_fit(question, shared), Not(HasSubstr("fit with micro_batches = 8 ")));
  question.budgets = {2000};
  EXPECT_THAT(suggest_fit(question, shared), HasSubstr("It would fit with micro_batches"));
}

TEST(Fit, TriesOnlyTheGivenNumbersOfMicroBatches) {
  FitQuestion question = two_stages();
  question.other_micro_batches = {};  // as with a user's own table
  const std::string advice = suggest_fit(question, costs());
  EXPECT_THAT(advice, HasSubstr("It would fit with recompute = \"always\" ("));
  EXPECT_THAT(advice, Not(HasSubstr("micro_batches")));
}

TEST(Fit, UsesTheScheduleOfTheQuestion) {
  // In 1F1B stage 1 keeps one micro-batch and stage 0 two, for any number of micro-batches.
  FitQuestion question = two_stages("1f1b");
  question.budgets = {700, 700};
  EXPECT_THAT(suggest_fit(question, costs()),
              HasSubstr("It would fit with micro_batches = 4 (predicted peak 600 B"));
}

TEST(Fit, SuggestsASplitSizeIfThePlanUsesOne) {
  FitQuestion question = two_stages();  // 16 samples with split_size 8
  question.split_size = 8;
  EXPECT_THAT(suggest_fit(question, costs()),
              HasSubstr("It would fit with split_size = 2 (predicted peak 950 B of 1000 B)"));
  // With split_size 9 the micro-batches have 9 and 7 samples, and the larger one was measured.
  question.split_size = 9;
  EXPECT_THAT(suggest_fit(question, costs()), HasSubstr("It would fit with split_size = "));
}

TEST(Fit, GivesGeneralAdviceWithoutCostsOrBudgets) {
  EXPECT_THAT(suggest_fit(two_stages(), {}), HasSubstr("More micro-batches, recompute"));
  FitQuestion unlimited = two_stages();
  unlimited.budgets = {0, 0};
  EXPECT_THAT(suggest_fit(unlimited, costs()), HasSubstr("More micro-batches, recompute"));
}

}  // namespace
}  // namespace trestle::plan
