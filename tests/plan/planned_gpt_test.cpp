// The costs and the ledger of a GPT by formulas.
#include "trestle/plan/gpt/planned_gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/plan/vtrain.h"
#include "trestle/base/error.h"
#include "trestle/plan/balance.h"
#include "trestle/plan/gpt/equal_layers.h"
#include "trestle/plan/gpt/gpt_block.h"
#include "trestle/plan/gpt/layer_times.h"
#include "trestle/plan/search/step_prediction.h"
#include "trestle/plan/transformer_memory.h"
#include "trestle/simulate/simulate.h"

namespace trestle::plan {
namespace {

using testing::HasSubstr;

const GptModel small = {
    .layers = 24, .hidden = 2048, .heads = 16, .sequence = 1024, .vocabulary = 51200};

std::string refusal_of_gpt(const std::string& words) {
  try {
    parse_gpt(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(GptModels, AreReadFromTheirSizes) {
  const GptModel model =
      parse_gpt("layers=24, hidden=2048,heads=16,sequence=1024,vocabulary=51200");
  EXPECT_EQ(model, small);
  EXPECT_FALSE(parse_gpt("tied=no,layers=1,hidden=2,heads=1,sequence=1,vocabulary=1").tied_head);
}

TEST(GptModels, CountParametersInWordsOfTheirSize) {
  const auto words = [](const char* sizes) { return describe(parse_gpt(sizes)); };
  EXPECT_THAT(words("layers=24,hidden=2048,heads=16,sequence=1024,vocabulary=51200"),
              HasSubstr("GPT of 1.3 billion parameters: "));
  EXPECT_THAT(words("layers=4,hidden=256,heads=4,sequence=128,vocabulary=1024"),
              HasSubstr("GPT of 3.5 million parameters: "));
  EXPECT_THAT(words("layers=1,hidden=2,heads=1,sequence=1,vocabulary=1"),
              HasSubstr("GPT of 78 parameters: "));
}

TEST(GptModels, RefuseWhatIsNone) {
  EXPECT_THAT(refusal_of_gpt("layers=24"), HasSubstr("no hidden, no heads"));
  EXPECT_THAT(refusal_of_gpt("layer=24"), HasSubstr("did you mean 'layers'"));
  EXPECT_THAT(refusal_of_gpt("layers"), HasSubstr("'layers' is not key=value"));
  EXPECT_THAT(refusal_of_gpt("layers=0"), HasSubstr("layers is a whole number from 1 to 4096"));
  EXPECT_THAT(refusal_of_gpt("layers=2,layers=2"), HasSubstr("twice"));
  EXPECT_THAT(refusal_of_gpt("layers=2,hidden=10,heads=3,sequence=1,vocabulary=1"),
              HasSubstr("3 heads do not divide"));
}

// Rajbhandari et al. 2020, table 1: 7.5 billion parameters, 64 ranks, in GB.
TEST(StateLedger, FormulasAreThePrintedDigits) {
  const double printed[] = {120, 31.4, 16.6, 1.88};
  const double digit[] = {1, 0.1, 0.1, 0.01};
  for (int level = 0; level < 4; ++level) {
    Ledger ledger;
    set_states(&ledger, 7.5e9, {.level = level, .shards = 64});
    EXPECT_NEAR(ledger.total() / 1e9, printed[level], digit[level] / 2 + 1e-9) << level;
  }
}

// Korthikanti et al. 2022: the first stage's activations, in all bytes. Table 3's GiB are those of
// tests/plan/transformer_memory_test.cpp.
TEST(GptLedger, ActivationsAreThoseOfThePublishedFirstStage) {
  const Machine machine = vtrain::machine();
  const GptModel model = {
      .layers = 96, .hidden = 12288, .heads = 96, .sequence = 2048, .vocabulary = 51200};
  for (const int chunks : {1, 3}) {
    const Strategy strategy = {.tensor = 8,
                               .pipeline = 8,
                               .data = 1,
                               .micro_batch = 1,
                               .recompute = BlockRecompute::Selective,
                               .chunks = chunks,
                               .sequence_parallel = true};
    const Ledger first = PlannedGpt(model, machine).ledgers(strategy, 64).front();
    const double published = published_first_stage_bytes(
        PublishedForm::TensorSequenceSelective,
        {.tokens = 2048, .batch = 1, .width = 12288, .heads = 96, .tensor = 8},
        {.layers = 96, .stages = 8, .chunks = static_cast<double>(chunks)});
    EXPECT_NEAR(first.activations / published, 1, 1e-12) << chunks;
  }
}

// No stage needs more than its ledger, which is at most a tenth above the simulator's peak.
TEST(GptLedger, BoundsTheSimulatedPeak) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(small, machine);
  for (const char* schedule : {"1f1b", "gpipe"})
    for (const int pipeline : {1, 2, 4})
      for (const BlockRecompute recompute :
           {BlockRecompute::None, BlockRecompute::Selective, BlockRecompute::All})
        for (const int level : {0, 3}) {
          const Strategy strategy = {.tensor = 2,
                                     .pipeline = pipeline,
                                     .data = 2,
                                     .level = level,
                                     .micro_batch = 4,
                                     .recompute = recompute,
                                     .schedule = schedule};
          const auto timeline =
              simulate::simulate(table_of(strategy, 8), model.costs(strategy, 8).costs);
          const auto ledgers = model.ledgers(strategy, 8);
          for (std::size_t s = 0; s < ledgers.size(); ++s) {
            const auto peak = static_cast<double>(timeline.peak_bytes.at(s));
            EXPECT_LE(peak, ledgers[s].total() + 16) << to_string(strategy) << ", stage " << s;
            EXPECT_GE(peak, 0.9 * ledgers[s].total()) << to_string(strategy) << ", stage " << s;
          }
        }
}

TEST(GptParameters, SumOverStagesIsTheModels) {
  const Machine machine = vtrain::machine();
  const Strategy one = {};
  const auto whole = parameters_of_stages(small, one, layers_of_stages(small, one, machine));
  EXPECT_NEAR(whole.front() / parameters_of(small), 1, 1e-12);
  // Two stages: a tied head has a copy of its table.
  const Strategy two = {.pipeline = 2};
  const auto parts = parameters_of_stages(small, two, layers_of_stages(small, two, machine));
  EXPECT_NEAR(parts[0] + parts[1] - 51200.0 * 2048, parameters_of(small), 1);
}

TEST(GptCut, IsAsGoodAsTheExactOptimum) {
  Random random(7);
  for (int i = 0; i < 200; ++i) {
    const auto layers = static_cast<std::int64_t>(2 + random.below(40));
    const int stages = static_cast<int>(1 + random.below(static_cast<std::uint64_t>(layers)));
    const EqualLayers costs{random.uniform(0.1, 2), random.uniform(0, 3), random.uniform(0, 5)};
    const std::vector<int> cut = cut_equal_layers(layers, stages, costs);
    std::vector<double> each(static_cast<std::size_t>(layers), costs.layer);
    each.front() += costs.first;
    each.back() += costs.last;
    const auto slowest = [&](const std::vector<int>& balance) {
      double most = 0;
      std::size_t at = 0;
      for (const int count : balance) {
        double sum = 0;
        for (int k = 0; k < count; ++k) sum += each[at++];
        most = std::max(most, sum);
      }
      return most;
    };
    ASSERT_EQ(std::accumulate(cut.begin(), cut.end(), std::int64_t{0}), layers);
    EXPECT_NEAR(slowest(cut), slowest(balance(each, stages)), 1e-9) << layers << " in " << stages;
  }
}

// The first layers of each stage may cost more. Every cut is tried.
TEST(GptCut, WithDearerFirstLayersIsTheBestOfAllCuts) {
  Random random(11);
  for (int i = 0; i < 100; ++i) {
    const auto layers = static_cast<int>(3 + random.below(10));
    const EqualLayers costs{.layer = random.uniform(0.1, 2),
                            .first = random.uniform(0, 3),
                            .last = random.uniform(0, 5),
                            .extra_layers = static_cast<int>(random.below(5)),
                            .extra = random.uniform(0, 2)};
    const auto slowest = [&](const std::vector<int>& cut) {
      double most = 0;
      for (std::size_t s = 0; s < cut.size(); ++s)
        most = std::max(most,
                        cut[s] * costs.layer + std::min(cut[s], costs.extra_layers) * costs.extra +
                            (s == 0 ? costs.first : 0) + (s + 1 == cut.size() ? costs.last : 0));
      return most;
    };
    double best = 1e30;
    for (int a = 1; a + 2 <= layers; ++a)
      for (int b = 1; a + b + 1 <= layers; ++b)
        best = std::min(best, slowest({a, b, layers - a - b}));
    EXPECT_NEAR(slowest(cut_equal_layers(layers, 3, costs)), best, 1e-9) << layers;
  }
}

TEST(GptRules, NameWhatDoesNotDivide) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(small, machine);
  const auto rules = [&](Strategy strategy) {
    std::vector<std::string> names;
    for (const BrokenRule& broken : model.broken_rules(strategy)) names.push_back(broken.rule);
    return names;
  };
  EXPECT_EQ(rules({.tensor = 8}), std::vector<std::string>());
  EXPECT_EQ(rules({.tensor = 16}), std::vector<std::string>{"node"});
  EXPECT_EQ(rules({.tensor = 3}), (std::vector<std::string>{"heads", "node"}));
}

TEST(GptTimes, RecomputationRepeatsTheForward) {
  const Machine machine = vtrain::machine();
  LayerSplit split{.micro_batch = 4, .tensor = 4};
  const PassSeconds none = block_seconds(small, split, machine);
  split.recompute = BlockRecompute::All;
  EXPECT_DOUBLE_EQ(block_seconds(small, split, machine).backward, none.backward + none.forward);
  split.recompute = BlockRecompute::Selective;
  const PassSeconds selective = block_seconds(small, split, machine);
  EXPECT_GT(selective.backward, none.backward);
  EXPECT_LT(selective.backward, none.backward + none.forward);
}

// Rings over nodes send every byte over each node's link, of which each group has a share.
TEST(CollectiveTimes, OverNodesUseTheLinksShare) {
  const Machine machine = vtrain::machine();
  const double bytes = 1e9;
  const double inside = all_reduce_seconds(machine, bytes, {8, 8, 1});
  const double over = all_reduce_seconds(machine, bytes, {32, 8, 1});
  EXPECT_NEAR(over - inside, 2 * 3 * 5e-6 + 2 * 0.75 * bytes / 100e9, 1e-9);
  EXPECT_NEAR(all_reduce_seconds(machine, bytes, {4, 1, 8}), 2 * 3 * 5e-6 + 1.5 * bytes * 8 / 100e9,
              1e-9);
  EXPECT_EQ(all_reduce_seconds(machine, bytes, {1, 1, 1}), 0);
}

Machine four_in_a_node() {
  Machine machine = vtrain::machine();
  machine.devices_per_node = 4;
  return machine;
}

// Eight stages on two nodes: the fourth sends to the other node.
TEST(Places, OneBoundaryOfAPipelineOverTwoNodesIsBetweenThem) {
  const Strategy eight{.pipeline = 8};
  for (int stage = 0; stage < 7; ++stage)
    EXPECT_EQ(reach_after_stage(eight, four_in_a_node(), stage),
              stage == 3 ? Reach::Between : Reach::Inside);
  const Strategy pairs{.tensor = 2, .pipeline = 3};  // 0 1 | 2 3 | 4 5
  EXPECT_EQ(reach_after_stage(pairs, four_in_a_node(), 0), Reach::Inside);
  EXPECT_EQ(reach_after_stage(pairs, four_in_a_node(), 1), Reach::Between);
}

TEST(Places, ASlowLinkBetweenNodesIsInTheStepOfAPipelineOverThem) {
  const GptModel gpt = {
      .layers = 48, .hidden = 2048, .heads = 16, .sequence = 1024, .vocabulary = 50304};
  Machine machine = four_in_a_node();
  machine.between.bandwidth.value = 1e6;
  const Strategy eight{.pipeline = 8};
  const double seconds = predict_step(eight, 32, PlannedGpt(gpt, machine).costs(eight, 32)).seconds;
  // The outputs of stage 3 take 4 s each, and at most four of them are in flight at the same time.
  EXPECT_GT(seconds, 32 * 2.0 * 1024 * 2048 / 1e6 / 4);
}

// Ranks 3, 4 and 5 of the second of four groups are on two nodes of four.
TEST(Places, AGroupThatStraddlesNodesIsOnTheMostThatAnyIs) {
  EXPECT_EQ(place_of_data_group({.pipeline = 4, .data = 3}, four_in_a_node()).per_node, 2);
  EXPECT_EQ(place_of_data_group({.pipeline = 1, .data = 3}, four_in_a_node()).per_node, 3);
  EXPECT_EQ(place_of_data_group({.tensor = 2, .pipeline = 2, .data = 4}, four_in_a_node()).per_node,
            2);
}

// Copies of offloaded weights are not messages that hide behind computation.
TEST(Places, HiddenMessagesLeaveTheCopiesOfOffload) {
  const GptModel gpt = {
      .layers = 4, .hidden = 1024, .heads = 16, .sequence = 1024, .vocabulary = 51200};
  Machine machine = four_in_a_node();
  machine.host = HostFigures{
      .bandwidth = {.value = 1e9}, .memory_bandwidth = {.value = 1e11}, .memory = {.value = 1e12}};
  machine.hidden_data = Figure{.value = 1};
  const Strategy offloaded{.data = 4, .level = 3, .offload = true};
  const Strategy kept{.data = 4, .level = 3};
  const PlannedGpt model(gpt, machine);
  const simulate::StageCost with = model.costs(offloaded, 1).costs.stages[0];
  const simulate::StageCost without = model.costs(kept, 1).costs.stages[0];
  const double copy = 2 * parameters_of(gpt) / 4 / 1e9;
  EXPECT_NEAR(with.forward - without.forward, copy, 0.01 * copy);
  EXPECT_NEAR(with.backward - without.backward, 2 * copy, 0.02 * copy);
}

// The terms of trestle's own blocks, which keep two statistics of each normed token beside them.
TEST(GptBytes, CountTheWidthsOfTheMlpAndOfKeys) {
  GptModel gpt = {.layers = 1, .hidden = 64, .heads = 4, .sequence = 16, .vocabulary = 64};
  const auto expect_own_terms = [&](const LayerSplit& split) {
    const bool selective = split.recompute == BlockRecompute::Selective;
    const BlockSizes sizes{.batch = 2,
                           .tokens = 16,
                           .width = 64,
                           .heads = 4,
                           .kv_heads = gpt.kv_heads,
                           .head_size = 16,
                           .mlp = gpt.feed_forward};
    const BlockSettings settings{.core = BlockSettings::Core::Written,
                                 .recompute = selective ? BlockSettings::Recompute::Attention
                                                        : BlockSettings::Recompute::Nothing,
                                 .residual_dropout = true,
                                 .attention_dropout = true,
                                 .tensor = split.tensor,
                                 .sequence = split.sequence_parallel};
    const int tokens = 2 * 16 / (split.sequence_parallel ? split.tensor : 1);
    EXPECT_EQ(static_cast<double>(total_of(kept_by_block(sizes, settings))),
              activation_bytes(gpt, split) + 8 * tokens)
        << gpt.kv_heads << " " << gpt.feed_forward << " " << split.tensor << " " << tokens;
  };
  for (const std::int64_t kv_heads : {4, 2})
    for (const std::int64_t inner : {256, 384})
      for (const int tensor : {1, 2})
        for (const BlockRecompute recompute : {BlockRecompute::None, BlockRecompute::Selective}) {
          gpt.kv_heads = kv_heads;
          gpt.feed_forward = inner;
          LayerSplit split{.micro_batch = 2, .tensor = tensor, .recompute = recompute};
          expect_own_terms(split);
          split.sequence_parallel = true;
          expect_own_terms(split);
        }
  // A wider MLP has more bytes to read and to write.
  const Machine machine = vtrain::machine();
  GptModel wide = gpt;
  wide.feed_forward = 2 * gpt.inner();
  EXPECT_EQ(split_bytes_of_token(wide, {}) - split_bytes_of_token(gpt, {}), 4 * gpt.inner());
  EXPECT_GT(block_compute(wide, {}, machine), block_compute(gpt, {}, machine));
}

}  // namespace
}  // namespace trestle::plan
