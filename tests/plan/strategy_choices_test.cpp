// The choices of a strategy beside its degrees: rows of shards, offload, precision, and parts that
// are recomputed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/plan/vtrain.h"
#include "trestle/base/error.h"
#include "trestle/plan/gpt/planned_gpt.h"
#include "trestle/plan/search/search.h"

namespace trestle::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const GptModel billion = {
    .layers = 24, .hidden = 2048, .heads = 16, .sequence = 1024, .vocabulary = 51200};

Ledger first_ledger(const Strategy& strategy, const Machine& machine = vtrain::machine()) {
  return PlannedGpt(billion, machine).ledgers(strategy, 8).front();
}

StrategyCosts costs_of(const Strategy& strategy, const Machine& machine = vtrain::machine()) {
  return PlannedGpt(billion, machine).costs(strategy, 8);
}

std::vector<Strategy> listed(const PlanRequest& request,
                             const Machine& machine = vtrain::machine()) {
  return legal_strategies(PlannedGpt(billion, machine), request, nullptr);
}

std::string refusal(const std::string& keep, const Machine& machine = vtrain::machine()) {
  try {
    find_plans(PlannedGpt(billion, machine), machine,
               {.devices = 16, .batch = 64, .kept = parse_kept({keep})});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(StrategyChoices, AreReadAndWritten) {
  const std::string words =
      "replicate=2,recompute=all,recompute_layers=3,recompute_stages=1,offload=yes,precision=fp32";
  EXPECT_EQ(to_string(parse_kept({words})), words);
  EXPECT_EQ(to_string(parse_kept({"precision=any"})), "precision=any");
  EXPECT_THROW(parse_kept({"precision=fp31"}), UsageError);
  EXPECT_THROW(parse_kept({"offload=some"}), UsageError);
  EXPECT_THROW(parse_kept({"replicate=0"}), UsageError);
  const Strategy strategy{.data = 8,
                          .level = 3,
                          .replicate = 2,
                          .offload = true,
                          .recompute = BlockRecompute::All,
                          .recompute_layers = 1,
                          .precision = Precision::Fp32};
  EXPECT_EQ(to_string(strategy),
            "tensor 1 · pipeline 1 · data 8 · ZeRO-3 · in 2 rows of 4 · offload · micro-batch 1 · "
            "recompute all in the first 1 block · fp32");
}

TEST(StrategyRows, ShardWithinARowAndSumOverRows) {
  const Machine machine = vtrain::machine();
  Strategy rows{.data = 16, .level = 3, .replicate = 2};
  const Strategy row{.data = 8, .level = 3};
  EXPECT_EQ(rows.shards(), 8);
  // Each rank holds what it holds in one row of 8 ranks.
  EXPECT_EQ(first_ledger(rows).total(), first_ledger(row).total());
  for (const int level : {1, 2, 3}) {
    rows.level = level;
    Strategy alone = row;
    alone.level = level;
    const auto two = costs_of(rows).costs.stages.front(),
               one = costs_of(alone).costs.stages.front();
    EXPECT_EQ(two.forward, one.forward);
    EXPECT_EQ(two.backward, one.backward);
    // 2 bytes of each gradient of a rank's eighth, between two nodes whose eight devices send.
    const double bytes = 2 * first_ledger({}).parameters / 2 / 8;
    EXPECT_NEAR(two.reduce - one.reduce, 2 * 5e-6 + bytes * 8 / 100e9, 1e-12) << level;
  }
  // Rows of 2 in a node of 8: four rows inside, whose ranks sum over four ranks of each node.
  const GroupPlace shards = place_of_data_group({.data = 16, .level = 3, .replicate = 8}, machine);
  const GroupPlace sums = place_of_row_group({.data = 16, .level = 3, .replicate = 8}, machine);
  EXPECT_EQ(shards.ranks, 2);
  EXPECT_EQ(shards.per_node, 2);
  EXPECT_EQ(sums.ranks, 8);
  EXPECT_EQ(sums.per_node, 4);
  EXPECT_EQ(sums.sharing, 2);
}

TEST(StrategyRows, NeedALevelAndTwoRanksInARow) {
  for (const Strategy& strategy : listed({.devices = 8, .batch = 8})) {
    EXPECT_EQ(strategy.data % strategy.replicate, 0);
    EXPECT_TRUE(strategy.replicate == 1 || (strategy.level > 0 && strategy.shards() > 1))
        << to_string(strategy);
  }
  EXPECT_THAT(refusal("data=16,replicate=16"), HasSubstr("leave one rank in each"));
  EXPECT_THAT(refusal("data=16,replicate=3"), HasSubstr("3 rows do not divide 16 data ranks"));
  EXPECT_THAT(refusal("data=16,replicate=2,level=0"), HasSubstr("level 0 has none"));
}

TEST(StrategyOffload, MovesStatesToTheHost) {
  Strategy strategy{.data = 8, .level = 1};
  const double parameters = first_ledger({}).parameters / 2;
  for (const int level : {1, 2, 3}) {
    strategy.level = level;
    strategy.offload = false;
    const Ledger device = first_ledger(strategy);
    strategy.offload = true;
    const Ledger host = first_ledger(strategy);
    EXPECT_NEAR(host.host, (level == 3 ? 16 : 12) * parameters / 8, 1) << level;
    EXPECT_NEAR(device.total() - host.total(), host.host, 1) << level;
    EXPECT_EQ(host.optimizer, 0);
  }
}

// Each term by hand: 32 GB/s to the host, 409.6 GB/s of its memory for eight devices.
TEST(StrategyOffload, TakesTheTimeOfCopiesAndOfTheHostsUpdate) {
  Strategy strategy{.data = 8, .level = 1};
  const double share = first_ledger({}).parameters / 2 / 8;
  for (const int level : {1, 2, 3}) {
    strategy.level = level;
    strategy.offload = false;
    const auto device = costs_of(strategy).costs.stages.front();
    strategy.offload = true;
    const auto host = costs_of(strategy).costs.stages.front();
    const double copies = level < 3 ? 4 * share / 32e9 : 0;
    EXPECT_NEAR(host.step - device.step, 20 * share * (8 / 409.6e9 - 1 / 1.555e12) + copies, 1e-9);
    EXPECT_NEAR(host.forward - device.forward, level == 3 ? 2 * share / 32e9 : 0, 1e-9);
    EXPECT_NEAR(host.backward - device.backward, level == 3 ? 4 * share / 32e9 : 0, 1e-9);
  }
}

TEST(StrategyOffload, NamesTheFigureThatIsMissing) {
  Machine machine = vtrain::machine();
  EXPECT_THAT(refusal("data=16,level=0,offload=yes"), HasSubstr("level 0 has none"));
  machine.host->memory.value = 1e9;
  EXPECT_THAT(refusal("data=16,level=3,offload=yes", machine),
              HasSubstr("offload 9.8 GiB, and its host has 953.7 MiB"));
  machine.host.reset();
  EXPECT_THAT(refusal("data=16,level=3,offload=yes", machine),
              HasSubstr("has no bandwidth, memory_bandwidth and memory in [host]"));
  for (const Strategy& strategy : listed({.devices = 8, .batch = 8}, machine))
    EXPECT_FALSE(strategy.offload);
}

TEST(StrategyPrecision, IsTheModelsOwnUnlessOthersAreKept) {
  const auto all_are = [](const PlanRequest& request, Precision precision) {
    const auto all = listed(request);
    return !all.empty() && std::all_of(all.begin(), all.end(), [&](const Strategy& strategy) {
      return strategy.precision == precision;
    });
  };
  PlanRequest request{.devices = 4, .batch = 8};
  EXPECT_TRUE(all_are(request, Precision::Own));
  const std::size_t own = listed(request).size();
  request.kept = parse_kept({"precision=bf16"});
  EXPECT_TRUE(all_are(request, Precision::Own));
  request.kept = parse_kept({"precision=fp32"});
  EXPECT_TRUE(all_are(request, Precision::Fp32));
  request.kept = parse_kept({"precision=any"});
  EXPECT_EQ(listed(request).size(), 2 * own);
  EXPECT_THAT(refusal("precision=fp16"), HasSubstr("no precision fp16"));
  Machine machine = vtrain::machine();
  machine.peak_fp32.reset();
  EXPECT_THAT(refusal("precision=fp32", machine), HasSubstr("has no peak_fp32 in [device]"));
}

TEST(StrategyPrecision, HasTheBytesAndTheSpeedOfFp32) {
  Strategy strategy{.tensor = 2, .pipeline = 2, .data = 2, .micro_batch = 4};
  const Ledger bf16 = first_ledger(strategy);
  const auto fast = costs_of(strategy).costs;
  strategy.precision = Precision::Fp32;
  const Ledger fp32 = first_ledger(strategy);
  const auto slow = costs_of(strategy).costs;
  EXPECT_EQ(fp32.parameters, 2 * bf16.parameters);
  EXPECT_EQ(fp32.gradients, 2 * bf16.gradients);
  EXPECT_NEAR(fp32.optimizer, bf16.optimizer * 8 / 12, 1);
  EXPECT_EQ(fp32.activations, 2 * bf16.activations);
  EXPECT_EQ(fp32.messages, 2 * bf16.messages);
  // 312 against 19.5 TFLOP/s of products, and twice the bytes of everything else.
  EXPECT_GT(slow.stages[0].forward, 8 * fast.stages[0].forward);
  EXPECT_LT(slow.stages[0].forward, 16 * fast.stages[0].forward);
  EXPECT_EQ(slow.stages[0].step, fast.stages[0].step);
  EXPECT_GT(slow.routes[0].seconds, 1.9 * fast.routes[0].seconds);
}

TEST(PartialRecomputation, IsBetweenNoneAndAllByTheBlock) {
  Strategy strategy{.pipeline = 4, .micro_batch = 2};  // stages of six layers
  const Ledger none = first_ledger(strategy);
  const double fast = costs_of(strategy).costs.stages[1].backward;
  for (const BlockRecompute recompute : {BlockRecompute::Selective, BlockRecompute::All}) {
    strategy.recompute = recompute;
    strategy.recompute_layers = 0;
    const Ledger all = first_ledger(strategy);
    const double slow = costs_of(strategy).costs.stages[1].backward;
    for (const int blocks : {1, 2, 5}) {
      strategy.recompute_layers = blocks;
      const Ledger part = first_ledger(strategy);
      EXPECT_NEAR(part.activations,
                  none.activations + (all.activations - none.activations) * blocks / 6, 1);
      EXPECT_EQ(part.transient, all.transient);
      EXPECT_NEAR(costs_of(strategy).costs.stages[1].backward, fast + (slow - fast) * blocks / 6,
                  1e-12);
    }
  }
}

// The least recomputation that fits wins.
TEST(PartialRecomputation, FitsWithLessThanAll) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(billion, machine);
  Strategy strategy{.micro_batch = 4};
  const auto bytes = [&](BlockRecompute recompute, int blocks) {
    strategy.recompute = recompute;
    strategy.recompute_layers = blocks;
    return first_ledger(strategy).total();
  };
  PlanRequest request{.devices = 1, .batch = 32, .kept = parse_kept({"micro_batch=4"})};
  // Between those of 6 and 12 of 24 blocks, where 12 need least.
  request.memory = (bytes(BlockRecompute::Selective, 6) + bytes(BlockRecompute::Selective, 12)) / 2;
  const Plan best = find_plans(model, machine, request).best.front();
  EXPECT_EQ(best.strategy.recompute, BlockRecompute::Selective);
  EXPECT_EQ(best.strategy.recompute_layers, 12);
  request.kept.recompute_layers = 0;
  const Plan whole = find_plans(model, machine, request).best.front();
  EXPECT_EQ(whole.strategy.recompute_layers, 0);
  EXPECT_GT(whole.step.seconds, best.step.seconds);
}

TEST(PartialRecomputation, IsRefusedWhereItIsNoPart) {
  EXPECT_THAT(refusal("pipeline=1,recompute=all,recompute_layers=24"),
              HasSubstr("are not a part of them"));
  EXPECT_THAT(refusal("recompute=none,recompute_layers=2"), HasSubstr("there is none"));
  EXPECT_THAT(refusal("pipeline=2,recompute=all,recompute_stages=1"),
              HasSubstr("give recompute_layers"));
  for (const Strategy& strategy : listed({.devices = 4, .batch = 8}))
    EXPECT_TRUE(strategy.recompute != BlockRecompute::None || strategy.recompute_layers == 0);
}

TEST(StrategyChoices, NameGPipeOnOneStageToo) {
  const std::string text_of_1f1b = to_string(Strategy{});
  EXPECT_EQ(text_of_1f1b, "tensor 1 · pipeline 1 · data 1 · micro-batch 1 · recompute none");
  EXPECT_EQ(to_string(Strategy{.schedule = "gpipe"}), text_of_1f1b + " · gpipe");
  EXPECT_LT(first_ledger({}).total(), first_ledger({.schedule = "gpipe"}).total());
}

}  // namespace
}  // namespace trestle::plan
