// The search over strategies, with a GPT by formulas.
#include "trestle/plan/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/plan/vtrain.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/plan/gpt/planned_gpt.h"
#include "trestle/plan/search/plan_report.h"
#include "trestle/view/curve.h"

namespace trestle::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const GptModel billions_1 = {
    .layers = 24, .hidden = 2048, .heads = 16, .sequence = 1024, .vocabulary = 51200};
const GptModel billions_39 = {
    .layers = 48, .hidden = 8192, .heads = 64, .sequence = 2048, .vocabulary = 51200};
const GptModel billions_175 = {
    .layers = 96, .hidden = 12288, .heads = 96, .sequence = 2048, .vocabulary = 51200};

PlanResult plans(const GptModel& gpt, const PlanRequest& request) {
  const Machine machine = vtrain::machine();
  return find_plans(PlannedGpt(gpt, machine), machine, request);
}

std::string refusal_of(const GptModel& gpt, const PlanRequest& request) {
  try {
    plans(gpt, request);
  } catch (const UsageError& error) {
    return text(error.what(), "\n", error.where().hint);
  }
  return "no error";
}

std::string refusal_of_keep(const std::vector<std::string>& words) {
  try {
    parse_kept(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Kept, AreReadAndWritten) {
  const Kept kept = parse_kept({"tensor=8, pipeline=2", "micro_batch=4,recompute=all,level=1",
                                "sequence_parallel=yes,schedule=gpipe,chunks=1,data=2"});
  EXPECT_EQ(to_string(kept),
            "tensor=8,pipeline=2,data=2,level=1,micro_batch=4,recompute=all,schedule=gpipe,"
            "chunks=1,sequence_parallel=yes");
  EXPECT_EQ(to_string(parse_kept({})), "");
}

TEST(Kept, RefuseWhatIsNone) {
  EXPECT_THAT(refusal_of_keep({"tensr=8"}), HasSubstr("did you mean 'tensor'"));
  EXPECT_THAT(refusal_of_keep({"tensor=two"}), HasSubstr("a whole number from 1"));
  EXPECT_THAT(refusal_of_keep({"tensor"}), HasSubstr("has no value"));
  EXPECT_THAT(refusal_of_keep({"tensor=2", "tensor=4"}), HasSubstr("twice: 2 and 4"));
  EXPECT_THAT(refusal_of_keep({"level=4"}), HasSubstr("0, 1, 2 and 3"));
  EXPECT_THAT(refusal_of_keep({"recompute=most"}), HasSubstr("unknown recomputation 'most'"));
  EXPECT_THAT(refusal_of_keep({"schedule=1f1"}), HasSubstr("did you mean '1f1b'"));
  EXPECT_THAT(refusal_of_keep({"sequence_parallel=maybe"}), HasSubstr("yes or no"));
}

TEST(Search, PinnedDegreesGiveThePublishedRow) {
  const PlanResult result =
      plans(billions_39, {.devices = 512,
                          .batch = 1536,
                          .kept = parse_kept({"tensor=8,pipeline=2,micro_batch=4,recompute=all"})});
  const Plan& best = result.best.front();
  EXPECT_EQ(result.listed, 1);  // the degrees describe one run
  EXPECT_EQ(best.strategy, (Strategy{.tensor = 8,
                                     .pipeline = 2,
                                     .data = 32,
                                     .micro_batch = 4,
                                     .recompute = BlockRecompute::All}));
  EXPECT_EQ(best.micro_batches, 12);
  EXPECT_NEAR(best.step.seconds, 14.45, 0.12 * 14.45);  // Narayanan et al. 2021, table 1
  EXPECT_NEAR(best.step.compute + best.step.exposed + best.step.bubble + best.step.optimizer,
              best.step.seconds, 1e-9);
  EXPECT_NEAR(best.samples_per_second, 1536 / best.step.seconds, 1e-9);
}

// Without bounds the same plans win, for every goal.
TEST(Search, BoundsRejectNoWinner) {
  for (const Goal goal : {Goal::Time, Goal::Memory})
    for (const int devices : {4, 8})
      for (const std::int64_t batch : {8, 12}) {
        PlanRequest request{.devices = devices, .batch = batch, .goal = goal, .top = 3};
        if (batch == 12) request.kept = parse_kept({"precision=any"});
        const PlanResult bounded = plans(billions_1, request);
        request.simulate_all = true;
        const PlanResult all = plans(billions_1, request);
        ASSERT_EQ(bounded.best.size(), all.best.size());
        EXPECT_EQ(all.bounded, 0);
        EXPECT_LT(bounded.simulated, all.simulated);
        EXPECT_EQ(bounded.simulated + bounded.bounded, bounded.fitting);
        for (std::size_t i = 0; i < all.best.size(); ++i) {
          EXPECT_EQ(bounded.best[i].step.seconds, all.best[i].step.seconds);
          EXPECT_EQ(bounded.best[i].worst.total(), all.best[i].worst.total());
        }
      }
}

// The least time of every strategy is at most its simulated time.
TEST(Search, BoundsAreBelowTheSimulator) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(billions_1, machine);
  PlanRequest request{.devices = 16, .batch = 32};
  int tried = 0;
  for (const int chunks : {1, 2}) {
    request.kept.chunks = chunks;
    const auto all = legal_strategies(model, request, nullptr);
    for (std::size_t i = 0; i < all.size(); i += 11) {
      const Strategy& strategy = all[i];
      const std::int64_t n = micro_batches_of(strategy, request.batch);
      const StrategyCosts costs = model.costs(strategy, n);
      const double seconds = predict_step(strategy, n, costs).seconds;
      const double least = least_step_seconds(n, strategy.chunks, costs);
      EXPECT_LE(least, seconds * (1 + 1e-12)) << to_string(strategy);
      EXPECT_GE(least, 0.5 * seconds) << to_string(strategy);
      ++tried;
    }
  }
  EXPECT_GT(tried, 500);
}

TEST(Search, ListsEachStrategyOnceAndOnlyLegalOnes) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(billions_1, machine);
  const auto legal = legal_strategies(model, {.devices = 8, .batch = 8}, nullptr);
  for (std::size_t i = 0; i < legal.size(); ++i) {
    EXPECT_EQ(legal[i].devices(), 8);
    EXPECT_EQ(8 % (legal[i].data * legal[i].micro_batch), 0);
    EXPECT_TRUE(model.broken_rules(legal[i]).empty());
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(legal[i] == legal[j]);
  }
  // tensor 1 x pipeline 1 x data 8, micro-batch 1: no level, or three levels on 1, 2 or 4 rows,
  // with and without offload; no recomputation, or two kinds of a quarter, two, three or all.
  EXPECT_EQ(
      std::count_if(legal.begin(), legal.end(), [](const Strategy& s) { return s.data == 8; }),
      (1 + 3 * 3 * 2) * (1 + 2 * 4));
}

TEST(Search, GoalsRankByTheirOwnNumber) {
  const PlanResult time = plans(billions_1, {.devices = 8, .batch = 64});
  const PlanResult memory = plans(billions_1, {.devices = 8, .batch = 64, .goal = Goal::Memory});
  EXPECT_LT(memory.best.front().worst.total(), time.best.front().worst.total());
  EXPECT_GT(memory.best.front().step.seconds, time.best.front().step.seconds);
  for (std::size_t i = 1; i < time.best.size(); ++i)
    EXPECT_LE(time.best[i - 1].step.seconds, time.best[i].step.seconds);

  Machine machine = vtrain::machine();
  const PlanRequest money{.devices = 64, .batch = 64, .goal = Goal::Money};
  EXPECT_THAT(refusal_of(billions_1, money), HasSubstr("has no price"));
  machine.price_per_hour = Figure{2, Origin::Assumed, "a guess"};
  const Plan cheapest = find_plans(PlannedGpt(billions_1, machine), machine, money).best.front();
  EXPECT_LT(cheapest.strategy.devices(), 64);
  EXPECT_NEAR(cheapest.money, cheapest.step.seconds * 2 * cheapest.strategy.devices() / 3600,
              1e-12);
}

TEST(Search, MissingFamiliesNameTheirBytes) {
  const PlanResult result = plans(billions_39, {.devices = 64, .batch = 64});
  ASSERT_FALSE(result.too_large.empty());
  for (const TooLarge& large : result.too_large) {
    EXPECT_NEAR(large.worst.total() - result.available, large.overshoot, 1);
    EXPECT_GT(large.overshoot, 0);
    ASSERT_FALSE(large.changes.empty());
    for (const Plan& change : large.changes) EXPECT_GE(change.headroom, 0);
  }
}

TEST(Search, NothingFits) {
  const PlanResult result = plans(billions_175, {.devices = 8, .batch = 64});
  EXPECT_TRUE(result.best.empty());
  ASSERT_TRUE(result.least_memory);
  EXPECT_GT(result.least_memory->worst.total(), result.available);
  ASSERT_TRUE(result.least_devices);
  EXPECT_FALSE(plans(billions_175, {.devices = *result.least_devices, .batch = 64}).best.empty());
  // With the least memory it fits.
  EXPECT_FALSE(plans(billions_175,
                     {.devices = 8, .batch = 64, .memory = result.least_memory->worst.total() + 1})
                   .best.empty());
}

// One strategy that does not fit has a time too.
TEST(Search, OneRunHasATimeWhetherItFitsOrNot) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(billions_39, machine);
  PlanRequest request{.devices = 4,
                      .batch = 8,
                      .kept = parse_kept({"tensor=4,pipeline=1,micro_batch=1,recompute=all"})};
  const auto json_of = [&] {
    const PlanResult result = find_plans(model, machine, request);
    return nlohmann::json::parse(plan_json({model, machine, request, result}));
  };
  const auto large = json_of();
  request.memory = 1e12;
  const auto fits = json_of();
  EXPECT_EQ(large["fits"], false);
  EXPECT_EQ(fits["fits"], true);
  EXPECT_EQ(large["predicted_step_seconds"], fits["predicted_step_seconds"]);
  EXPECT_EQ(large["strategy"], fits["strategy"]);
}

TEST(Search, RefusalsNameTheRuleAndTheNearestNumbers) {
  EXPECT_THAT(
      refusal_of(billions_39,
                 {.devices = 512, .batch = 1536, .kept = parse_kept({"tensor=8,pipeline=3"})}),
      AllOf(HasSubstr("8 x 3 ranks of a replica do not divide 512 devices"),
            HasSubstr("384 and 576 devices")));
  EXPECT_THAT(
      refusal_of(billions_39,
                 {.devices = 512, .batch = 1535, .kept = parse_kept({"tensor=8,pipeline=2"})}),
      AllOf(HasSubstr("a batch of 1535 does not divide over 32 data ranks"),
            HasSubstr("batches of 1504 and 1536")));
  EXPECT_THAT(refusal_of(billions_39, {.devices = 512,
                                       .batch = 1536,
                                       .kept = parse_kept({"tensor=8,pipeline=2,data=16"})}),
              HasSubstr("leaves 32 data ranks of 512 devices, not 16"));
  EXPECT_THAT(
      refusal_of(billions_39, {.devices = 64, .batch = 64, .kept = parse_kept({"tensor=16"})}),
      HasSubstr("16 tensor ranks do not divide a node of 8 devices"));
  EXPECT_THAT(
      refusal_of(billions_39, {.devices = 7, .batch = 8, .kept = parse_kept({"data=7"})}),
      AllOf(HasSubstr("does not divide over 7 data ranks"), HasSubstr("batches of 7 and 14")));
  GptModel one_layer = billions_1;
  one_layer.layers = 1;
  EXPECT_THAT(refusal_of(one_layer, {.devices = 2, .batch = 2, .kept = parse_kept({"pipeline=2"})}),
              HasSubstr("2 stages are more than 1 layer"));
  // Seven devices without other wishes have strategies.
  EXPECT_FALSE(plans(billions_1, {.devices = 7, .batch = 8}).best.empty());
}

// Processor time of this thread: the machine may be busy.
TEST(Search, A175BillionModelOn1024DevicesTakesSeconds) {
  const std::clock_t begin = std::clock();
  const PlanResult result = plans(billions_175, {.devices = 1024, .batch = 1536});
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::cout << result.listed << " strategies, " << result.simulated << " simulated, " << seconds
            << " s\n";
  EXPECT_GT(result.listed, 1000);
  EXPECT_FALSE(result.best.empty());
  EXPECT_LT(seconds, 10);
}

// TRESTLE_UPDATE_DOCS=1 draws the picture of docs/plan.md again.
TEST(Search, ScalingFrom64To4096Devices) {
  view::Series tokens{.chart = "million tokens per second", .name = "best plan", .x = {}, .y = {}};
  view::Series mfu{.chart = "MFU in percent", .name = "best plan", .x = {}, .y = {}};
  for (int doublings = 6; doublings <= 12; ++doublings) {
    const int devices = 1 << doublings;
    const Plan best = plans(billions_175, {.devices = devices, .batch = 1536, .top = 1}).best.at(0);
    tokens.x.push_back(doublings);
    tokens.y.push_back(best.samples_per_second * 2048 / 1e6);
    mfu.x.push_back(doublings);
    mfu.y.push_back(100 * best.mfu);
    std::cout << devices << " devices: " << best.step.seconds << " s, MFU " << 100 * best.mfu
              << " %, " << to_string(best.strategy) << "\n";
  }
  EXPECT_TRUE(std::is_sorted(tokens.y.begin(), tokens.y.end()));
  EXPECT_LT(mfu.y.back(), mfu.y.front());
  const std::string picture = view::to_svg_curves(
      {tokens, mfu},
      {.title = "Simulated: GPT of 174.6 billion parameters, batch 1536, on 64 to 4,096 A100",
       .x_label = "log2 of the devices"});
  const std::string file = std::string(TRESTLE_SOURCE_DIR) + "/docs/pictures/plan_scaling.svg";
  if (std::getenv("TRESTLE_UPDATE_DOCS") != nullptr) write_file(file, picture);
  EXPECT_EQ(read_text_file(file), picture);
}

TEST(PlanReport, NamesEveryPartOfTheAnswer) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(billions_39, machine);
  const PlanRequest request{.devices = 512, .batch = 1536};
  const PlanResult result = find_plans(model, machine, request);
  const ReportOf report{model, machine, request, result};
  const std::string words = plan_report(report, 100);
  for (const char* part :
       {"GPT of 39.1 billion parameters", "MFU", "bubble", "1 is the best", "2 lost: it takes",
        "does not fit", "not legal: node", "simulated", "legal strategies"})
    EXPECT_THAT(words, HasSubstr(part));
  const auto json = nlohmann::json::parse(plan_json(report));
  EXPECT_EQ(json["predicted_step_seconds"], json["plans"][0]["step_seconds"]);
  EXPECT_EQ(json["plans"].size(), 5U);
  EXPECT_EQ(json["sources"]["seconds"], "simulated");
  EXPECT_GT(json["plans"][0]["step_seconds_to"], json["plans"][0]["step_seconds"]);
}

TEST(Kept, AreWrittenSoThatTheyAreReadAgain) {
  Kept kept = parse_kept({"tensor=2,recompute=selective,schedule=gpipe,offload=no,precision=fp32"});
  kept.any_precision = true;  // the precision that is given holds
  const std::string words = to_string(kept);
  EXPECT_THAT(words, HasSubstr("precision=fp32"));
  EXPECT_EQ(to_string(parse_kept({words})), words);
}

TEST(Search, RefusesNumbersThatAreNone) {
  const auto kept = [&](std::optional<int> Kept::*member, int number) {
    PlanRequest request{.devices = 4, .batch = 8};
    request.kept.*member = number;
    return refusal_of(billions_1, request);
  };
  for (const int number : {0, -2}) {
    EXPECT_THAT(kept(&Kept::tensor, number), HasSubstr(text("tensor=", number)));
    EXPECT_THAT(kept(&Kept::pipeline, number), HasSubstr(text("pipeline=", number)));
    EXPECT_THAT(kept(&Kept::data, number), HasSubstr(text("data=", number)));
    EXPECT_THAT(kept(&Kept::replicate, number), HasSubstr(text("replicate=", number)));
    EXPECT_THAT(kept(&Kept::micro_batch, number), HasSubstr(text("micro_batch=", number)));
    EXPECT_THAT(kept(&Kept::chunks, number), HasSubstr(text("chunks=", number)));
  }
  EXPECT_THAT(kept(&Kept::level, -1), HasSubstr("level=-1"));
  EXPECT_THAT(kept(&Kept::level, 4), HasSubstr("level=4"));
  EXPECT_THAT(kept(&Kept::recompute_layers, -1), HasSubstr("recompute_layers=-1"));
  EXPECT_THAT(kept(&Kept::recompute_stages, -1), HasSubstr("recompute_stages=-1"));
  EXPECT_THAT(refusal_of(billions_1, {.devices = 0, .batch = 8}), HasSubstr("0 devices"));
  EXPECT_THAT(refusal_of(billions_1, {.devices = -4, .batch = 8}), HasSubstr("-4 devices"));
  EXPECT_THAT(refusal_of(billions_1, {.devices = 2'000'000, .batch = 8}),
              HasSubstr("at most 1048576 devices"));
  EXPECT_THAT(refusal_of(billions_1, {.devices = 4, .batch = 0}), HasSubstr("a batch of 0"));
  EXPECT_THAT(refusal_of(billions_1, {.devices = 4, .batch = most_examples + 1}),
              HasSubstr("a batch of 1073741825"));
  EXPECT_THAT(refusal_of(billions_1, {.devices = 4, .batch = 8, .top = 0}),
              HasSubstr("the best 0"));
  for (const double memory : {-1.0, std::nan("")})
    EXPECT_THAT(refusal_of(billions_1, {.devices = 4, .batch = 8, .memory = memory}),
                HasSubstr("bytes of memory of a device"));
}

// No multiple before it has a plan that fits, whether it has many divisors or none.
TEST(Search, LeastDevicesAreTheFirstMultipleThatFits) {
  PlanRequest request{.devices = 8, .batch = 840};
  int checked = 0;
  for (const double memory : {40e9, 60e9, 80e9, 100e9}) {
    request.memory = memory;
    const PlanResult result = plans(billions_175, request);
    if (!result.best.empty() || !result.least_devices) continue;
    PlanRequest more = request;
    for (more.devices = 16; more.devices < *result.least_devices; more.devices += 8)
      EXPECT_TRUE(plans(billions_175, more).best.empty()) << more.devices << " " << memory;
    more.devices = *result.least_devices;
    EXPECT_FALSE(plans(billions_175, more).best.empty());
    ++checked;
  }
  EXPECT_GT(checked, 1);
  // Kept choices stay: more devices have more data ranks.
  request.memory = 0;
  request.kept = parse_kept({"tensor=8,pipeline=1,data=1"});
  EXPECT_FALSE(plans(billions_175, request).least_devices);
  request.kept = parse_kept({"data=1"});
  request.batch = 64;
  const PlanResult result = plans(billions_175, request);
  ASSERT_TRUE(result.least_devices);
  request.devices = *result.least_devices;
  EXPECT_EQ(plans(billions_175, request).best.front().strategy.data, 1);
}

TEST(Search, HintsAtWhatIsKeptOnlyIfSomethingIs) {
  const Machine machine = vtrain::machine();
  GptModel one_layer = billions_1;
  one_layer.layers = 1;
  const PlanRequest request{.devices = 100'003, .batch = 4};  // a prime
  EXPECT_THAT(refusal_of(one_layer, request),
              AllOf(HasSubstr("no strategy is legal"), HasSubstr("Give fewer devices"),
                    testing::Not(HasSubstr("--keep"))));
  // The rules of nodes hold for the machine's, which --nodes would change.
  EXPECT_THAT(
      refusal_of(billions_39,
                 {.devices = 512, .batch = 1536, .kept = parse_kept({"tensor=8,pipeline=3"})}),
      HasSubstr("384 and 576 devices on nodes of 8"));
}

TEST(PlanReport, ComparesTimesWithTheRangeOnlyIfItRanksByTime) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(billions_1, machine);
  const auto report_by = [&](Goal goal) {
    const PlanRequest request{.devices = 8, .batch = 64, .goal = goal};
    const PlanResult result = find_plans(model, machine, request);
    return plan_report({model, machine, request, result}, 100);
  };
  EXPECT_THAT(report_by(Goal::Time), HasSubstr("differ by less than the range"));
  EXPECT_THAT(report_by(Goal::Memory), testing::Not(HasSubstr("differ by less than the range")));
}

// A recipe's devices without a budget have the largest number of bytes.
TEST(PlanReport, SaysThatDevicesHaveNoLimit) {
  Machine machine = vtrain::machine();
  machine.memory.value = std::numeric_limits<double>::max();
  const PlannedGpt model(billions_1, machine);
  const PlanRequest request{.devices = 8, .batch = 64};
  const PlanResult result = find_plans(model, machine, request);
  EXPECT_THAT(plan_report({model, machine, request, result}, 100),
              AllOf(HasSubstr("   no limit"), testing::Not(HasSubstr("EiB"))));
}

TEST(PlanReport, NamesTheMultiplesThatItTried) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(billions_1, machine);
  const PlanRequest request{.devices = 2, .batch = 2, .memory = 1};
  PlanResult result = find_plans(model, machine, request);
  const auto report = [&] { return plan_report({model, machine, request, result}, 200); };
  EXPECT_THAT(report(),
              HasSubstr("no multiple up to 16 times these fits, nor 24, 32, 48, 64 times"));
  result.least_devices = 26;
  EXPECT_THAT(report(),
              HasSubstr("26 (the first multiple of 2 on which one fits with the tensor ranks that "
                        "were searched)"));
  result.least_devices = 64;
  EXPECT_THAT(report(), HasSubstr("64 (the first of 24, 32, 48, 64 times 2 on which one fits; no "
                                  "multiple up to 16 times does)"));
}

}  // namespace
}  // namespace trestle::plan
