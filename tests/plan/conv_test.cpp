// Convolutional nets by formulas, against torchgpipe's printed counts (docs/benchmarks.rst there).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <iostream>
#include <numeric>
#include <string>

#include "tests/plan/published_rows.h"
#include "trestle/base/error.h"
#include "trestle/plan/balance.h"
#include "trestle/plan/search/search.h"

namespace trestle::plan {
namespace {

using testing::HasSubstr;

// (B, C), the printed parameters with their last digit, and the sum of the printed balance.
TEST(ConvModels, UNetsHaveThePrintedParametersAndLayers) {
  struct Row {
    std::int64_t convolutions, base;
    double parameters, digit;
    int layers;
  };
  const Row rows[] = {{6, 72, 362.2e6, 0.1e6, 0},
                      {11, 128, 2.21e9, 0.01e9, 505},
                      {24, 128, 4.99e9, 0.01e9, 526 + 551},
                      {24, 160, 7.80e9, 0.01e9, 472 + 54 + 36 + 515},
                      {48, 160, 15.82e9, 0.01e9, 800 + 140 + 62 + 36 + 36 + 36 + 36 + 987}};
  for (const Row& row : rows) {
    const LayerList net = unet_list({.convolutions = row.convolutions, .base = row.base});
    EXPECT_NEAR(parameters_of(net), row.parameters, row.digit / 2) << net.name;
    if (row.layers > 0) {
      EXPECT_EQ(std::ssize(net.layers), row.layers) << net.name;
    }
  }
  const LayerList fast = unet_list({});
  EXPECT_EQ(parameters_of(fast), 232'687'328);
  EXPECT_EQ(std::ssize(fast.layers), 241);
}

// He et al. 2015, table 1: 7.6 billion multiply-adds, without the projections of skips. torchvision
// counts 44,549,160 parameters and 7.80 billion.
TEST(ConvModels, ResNet101HasThePublishedParametersAndProducts) {
  const LayerList net = resnet101_list();
  EXPECT_EQ(parameters_of(net), 44'549'160);
  EXPECT_EQ(std::ssize(net.layers), 370);
  EXPECT_NEAR(model_flops(net, 1) / 6 / 1e9, 7.80, 0.01);
}

TEST(ConvModels, AreReadFromTheirSizes) {
  EXPECT_EQ(parse_unet("base=72, convolutions=6").name, "U-Net (6, 72)");
  EXPECT_EQ(std::ssize(parse_resnet101("image=64").layers), 370);
  const auto refusal = [](const auto& parse, const std::string& words) -> std::string {
    try {
      parse(words);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(refusal(parse_unet, "image=100"), HasSubstr("100 cannot be halved 5 times"));
  EXPECT_THAT(refusal(parse_unet, "bas=64"), HasSubstr("did you mean 'base'"));
  EXPECT_THAT(refusal(parse_unet, "base=63"), HasSubstr("base=63 is odd"));
  EXPECT_THAT(refusal(parse_unet, "base=64,base=64"), HasSubstr("twice"));
  EXPECT_THAT(refusal(parse_unet, "base"), HasSubstr("'base' is not key=value"));
  EXPECT_THAT(refusal(parse_resnet101, "image=0"), HasSubstr("from 1 to"));
  EXPECT_THAT(refusal(parse_resnet101, "image=100"), HasSubstr("halved five times"));
}

// Skips join the cells of one level. They cross every cut between them.
TEST(ConvProfile, SkipsCrossTheCuts) {
  const LayerList net = unet_list({.depth = 2, .convolutions = 1, .base = 8, .image = 16});
  const LayerProfile profile = profile_of(net, 3, published::machine("p40-8-per-node"));
  EXPECT_NO_THROW(check(profile));
  const CutCosts cut = costs_of_cut(profile, {6, static_cast<int>(net.layers.size()) - 6});
  ASSERT_EQ(cut.routes.size(), 2);  // the main lane and the first level's skip
  EXPECT_EQ(cut.costs.routes[0].bytes, 4 * 3 * 8 * 8 * 8);    // after the pool
  EXPECT_EQ(cut.costs.routes[1].bytes, 4 * 3 * 8 * 16 * 16);  // before it
}

TEST(ConvProfile, ScalesWithTheMicroBatch) {
  const Machine machine = published::machine("p40-8-per-node");
  const LayerProfile one = profile_of(resnet101_list(), 1, machine);
  const LayerProfile four = profile_of(resnet101_list(), 4, machine);
  EXPECT_NEAR(four.seconds() / one.seconds(), 4, 1e-9);
  for (std::size_t i = 0; i < one.values.size(); ++i)
    EXPECT_EQ(four.values[i].bytes, 4 * one.values[i].bytes);
}

// The best plan of a search uses the exact cut, and data ranks reduce their gradients.
TEST(PlannedLayersSearch, CutsExactlyAndRanksPlans) {
  const Machine machine = published::machine("p40-8-per-node");
  const LayerList net = unet_list({.depth = 3, .convolutions = 2, .base = 16, .image = 64});
  const PlannedLayers model(net, machine);
  const PlanResult result =
      find_plans(model, machine, {.devices = 4, .batch = 32, .kept = {.pipeline = 4}});
  ASSERT_FALSE(result.best.empty());
  const Strategy best = result.best.front().strategy;
  EXPECT_EQ(model.cut_of(best, result.best.front().micro_batches),
            balance_by_time(profile_of(net, best.micro_batch, machine), 4));
  const PlanResult replicas =
      find_plans(model, machine, {.devices = 4, .batch = 32, .kept = {.data = 4}});
  ASSERT_FALSE(replicas.best.empty());
  EXPECT_GT(replicas.best.front().step.exposed, 0);
  const PlanResult any = find_plans(model, machine, {.devices = 4, .batch = 32});
  EXPECT_TRUE(std::any_of(any.rules.begin(), any.rules.end(),
                          [](const RuleCount& rule) { return rule.rule == "tensor"; }));
}

// A budget that the fastest cut breaks gives a slower cut that fits.
TEST(PlannedLayersSearch, CutsWithinTheMemory) {
  Machine machine = published::machine("p40-8-per-node");
  const LayerList net = unet_list({.depth = 3, .convolutions = 2, .base = 16, .image = 64});
  const Strategy strategy{.pipeline = 3, .micro_batch = 4, .schedule = "gpipe"};
  const auto worst = [&](const PlannedLayers& model) {
    double most = 0;
    for (const Ledger& ledger : model.ledgers(strategy, 4)) most = std::max(most, ledger.total());
    return most;
  };
  const PlannedLayers roomy(net, machine);
  machine.memory.value = worst(roomy) - 1;
  const PlannedLayers tight(net, machine);
  EXPECT_NE(tight.cut_of(strategy, 4), roomy.cut_of(strategy, 4));
  EXPECT_LE(worst(tight), machine.memory.value);
}

TEST(ConvProfile, ComputesAtThePeakOfFp32) {
  Machine machine = published::machine("p40-8-per-node");
  ASSERT_FALSE(machine.peak_fp32);  // its peak is that of fp32
  const double alone = profile_of(resnet101_list(), 1, machine).seconds();
  machine.peak_fp32 = machine.peak;
  machine.peak.value *= 16;
  EXPECT_EQ(profile_of(resnet101_list(), 1, machine).seconds(), alone);
  const PlannedLayers model(resnet101_list(), machine);
  const Plan best = find_plans(model, machine, {.devices = 1, .batch = 8}).best.front();
  EXPECT_NEAR(best.mfu, model.flops(8) / (best.step.seconds * machine.peak_fp32->value), 1e-12);
}

TEST(PlannedLayersSearch, RefusesWhatTheFormulasDoNotHave) {
  const Machine machine = published::machine("p40-8-per-node");
  const PlannedLayers model(unet_list({.depth = 2, .convolutions = 1, .base = 8, .image = 16}),
                            machine);
  EXPECT_THAT(model.precisions(), testing::ElementsAre(Precision::Fp32));
  struct Choice {
    Strategy strategy;
    const char* keep;
    const char* rule;
  };
  const Choice choices[] = {
      {{.tensor = 2}, "tensor=2", "tensor"},
      {{.data = 4, .level = 1}, "data=4,level=1", "level"},
      {{.data = 4, .replicate = 2}, "data=4,replicate=2", "replicate"},
      {{.data = 4, .offload = true}, "data=4,offload=yes", "offload"},
      {{.recompute = BlockRecompute::Selective}, "recompute=selective", "recompute"},
      {{.recompute = BlockRecompute::All, .recompute_layers = 1},
       "recompute=all,recompute_layers=1",
       "recompute"},
      {{.pipeline = 2, .recompute = BlockRecompute::All, .recompute_stages = 1},
       "recompute=all,recompute_stages=1",
       "recompute"},
      {{.pipeline = 2, .chunks = 2}, "pipeline=2,chunks=2", "interleaved"},
      {{.precision = Precision::Bf16}, "precision=bf16", "precision"}};
  for (const Choice& choice : choices) {
    const auto broken = model.broken_rules(choice.strategy);
    ASSERT_EQ(broken.size(), 1U) << choice.keep;
    EXPECT_EQ(broken.front().rule, choice.rule);
    EXPECT_THAT(broken.front().why, HasSubstr("layers by formulas ")) << choice.keep;
    EXPECT_THROW(
        find_plans(model, machine, {.devices = 4, .batch = 16, .kept = parse_kept({choice.keep})}),
        UsageError)
        << choice.keep;
  }
  EXPECT_EQ(model.broken_rules({.schedule = "other"}).at(0).rule, "schedule");
  for (const Strategy& strategy : legal_strategies(model, {.devices = 4, .batch = 16}, nullptr)) {
    EXPECT_TRUE(model.broken_rules(strategy).empty()) << to_string(strategy);
    EXPECT_EQ(strategy.level, 0);
  }
  EXPECT_FALSE(find_plans(model, machine,
                          {.devices = 4, .batch = 16, .kept = parse_kept({"precision=fp32"})})
                   .best.empty());
}

// All cuts of a small net into three stages, each with the micro-batches that it holds itself.
TEST(PlannedLayersSearch, CutsByTheMicroBatchesOfEachStage) {
  Machine machine = published::machine("p40-8-per-node");
  const LayerList net = unet_list({.depth = 1, .convolutions = 1, .base = 8, .image = 16});
  const int layers = static_cast<int>(net.layers.size());
  const LayerProfile profile = profile_of(net, 4, machine);
  const auto seconds = [&](int first, int last) {
    double sum = 0;
    for (int i = first; i < last; ++i) {
      const LayerCost& layer = profile.layers[static_cast<std::size_t>(i)];
      sum += layer.forward + layer.backward;
    }
    return sum;
  };
  int tight = 0;
  for (const BlockRecompute recompute : {BlockRecompute::None, BlockRecompute::All})
    for (const std::string schedule : {"1f1b", "gpipe"}) {
      const Strategy strategy{
          .pipeline = 3, .micro_batch = 4, .recompute = recompute, .schedule = schedule};
      const auto bytes = [&](int stage, int first, int last) {
        return static_cast<double>(stage_bytes(
            profile, first, last,
            {.optimizer_states = 2,
             .micro_batches = schedule == "gpipe" ? 8 : 3 - stage,
             .recompute = recompute == BlockRecompute::All ? schedule::Recompute::ExceptLast
                                                           : schedule::Recompute::Never}));
      };
      const double whole = bytes(0, 0, layers);
      for (int part = 1; part <= 40; ++part) {
        machine.memory.value = machine.reserved.value + whole * part / 40;
        double best = 1e30;
        for (int a = 1; a < layers - 1; ++a)
          for (int b = a + 1; b < layers; ++b)
            if (std::max({bytes(0, 0, a), bytes(1, a, b), bytes(2, b, layers)}) <=
                whole * part / 40)
              best = std::min(best, std::max({seconds(0, a), seconds(a, b), seconds(b, layers)}));
        if (best == 1e30) continue;
        const std::vector<int> cut = PlannedLayers(net, machine).cut_of(strategy, 8);
        ASSERT_EQ(cut.size(), 3U);
        EXPECT_NEAR(std::max({seconds(0, cut[0]), seconds(cut[0], cut[0] + cut[1]),
                              seconds(cut[0] + cut[1], layers)}),
                    best, 1e-12)
            << schedule << " " << part;
        ++tight;
      }
    }
  EXPECT_GT(tight, 40);
}

// On one stage 1f1b holds one micro-batch, and GPipe holds all.
TEST(PlannedLayersSearch, OneStageHoldsOneMicroBatch) {
  const Machine machine = published::machine("p40-8-per-node");
  const PlannedLayers model(resnet101_list(), machine);
  PlanRequest request{.devices = 1, .batch = 8, .kept = parse_kept({"micro_batch=1"})};
  const Plan one = find_plans(model, machine, request).best.front();
  EXPECT_EQ(one.strategy.schedule, "1f1b");
  request.kept.schedule = "gpipe";
  EXPECT_LT(one.worst.total(), find_plans(model, machine, request).best.front().worst.total());
}

// Processor time: the machine may be busy.
TEST(PlannedLayersSearch, SixtyFourDevicesTakeSeconds) {
  const Machine machine = published::machine("a100-8-per-node");
  const PlannedLayers model(unet_list({.image = 192}), machine);
  const std::clock_t begin = std::clock();
  EXPECT_FALSE(find_plans(model, machine, {.devices = 64, .batch = 4096}).best.empty());
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::cout << seconds << " s\n";
  EXPECT_LT(seconds, 15);
}

}  // namespace
}  // namespace trestle::plan
