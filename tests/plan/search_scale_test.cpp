// How the search grows with devices, with a model of a table of layers that counts its calls; its
// memory; and the bytes that plans send.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/plan/vtrain.h"
#include "trestle/base/error.h"
#include "trestle/plan/balance.h"
#include "trestle/plan/gpt/planned_gpt.h"
#include "trestle/plan/machine/nodes.h"
#include "trestle/plan/search/plan_report.h"

namespace trestle::plan {
namespace {

using testing::HasSubstr;

const GptModel gpt_175_billion = {
    .layers = 96, .hidden = 12288, .heads = 96, .sequence = 2048, .vocabulary = 51200};

// The number of layers of trestle's U-Net, each with its own time and bytes.
class TableModel final : public PlannedModel {
 public:
  std::string name() const override { return "table"; }
  std::int64_t layers() const override { return 22; }
  std::int64_t tokens() const override { return 1; }
  double flops(std::int64_t) const override { return 0; }
  std::string flops_formula() const override { return "none"; }
  std::string sources(const Machine&) const override { return "A table."; }
  std::vector<BlockRecompute> recomputations() const override {
    return {BlockRecompute::None, BlockRecompute::All};
  }
  std::vector<int> recompute_stages(const Strategy& strategy) const override {
    return strategy.pipeline > 1 ? std::vector<int>{1} : std::vector<int>();
  }
  bool measures() const override { return measured; }
  std::vector<BrokenRule> broken_rules(const Strategy& strategy) const override {
    tensors.insert(strategy.tensor);
    if (strategy.tensor <= 4) return {};
    return {{"tensor", "more than four tensor ranks"}};
  }

  std::vector<Ledger> ledgers(const Strategy& strategy, std::int64_t n) const override {
    ++ledger_calls;
    std::vector<Ledger> ledgers;
    std::size_t first = 0;
    const std::vector<int>& cut = cut_of(strategy);
    for (int s = 0; s < strategy.pipeline; ++s) {
      Ledger ledger{.stage = s};
      const auto held = static_cast<double>(std::min<std::int64_t>(n, strategy.pipeline - s));
      for (int i = 0; i < cut[static_cast<std::size_t>(s)]; ++i, ++first) {
        set_states(&ledger, 1e6 * (1 + static_cast<double>(first)) / strategy.tensor,
                   {.level = strategy.level, .shards = strategy.shards()});
        ledger.activations += strategy.recompute == BlockRecompute::All
                                  ? 0
                                  : held * strategy.micro_batch * 1e6 / strategy.tensor;
      }
      ledgers.push_back(ledger);
    }
    return ledgers;
  }

  StrategyCosts costs(const Strategy& strategy, std::int64_t) const override {
    ++cost_calls;
    StrategyCosts costs;
    std::size_t first = 0;
    for (const int layers : cut_of(strategy)) {
      simulate::StageCost stage;
      stage.forward = stage.backward = 0;
      for (int i = 0; i < layers; ++i, ++first)
        stage.forward +=
            seconds(first) * std::pow(strategy.micro_batch / (strategy.tensor * 1.), 0.9);
      stage.backward = (strategy.recompute == BlockRecompute::All ? 3 : 2) * stage.forward;
      stage.input_grad = stage.weight_grad = stage.backward / 2;
      stage.reduce = strategy.data > 1 ? 1e-3 : 0;
      costs.costs.stages.push_back(stage);
    }
    costs.costs.routes.assign(costs.costs.stages.size() - 1, {.seconds = 1e-4});
    return costs;
  }

  bool measured = false;
  mutable std::set<int> tensors;
  mutable std::int64_t ledger_calls = 0, cost_calls = 0;

 private:
  static double seconds(std::size_t layer) { return 1e-3 * (1 + static_cast<double>(layer % 5)); }

  const std::vector<int>& cut_of(const Strategy& strategy) const {
    std::vector<int>& cut = cuts_[strategy.pipeline];
    if (!cut.empty()) return cut;
    std::vector<double> each;
    for (std::size_t i = 0; i < 22; ++i) each.push_back(seconds(i));
    return cut = balance(each, strategy.pipeline);
  }

  mutable std::map<int, std::vector<int>> cuts_;  // by the stages
};

Machine small_machine() {
  Machine machine;
  machine.name = "small";
  machine.memory.value = 1e9;
  return machine;
}

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Each legal strategy is one ledger, and each that fits one bound.
TEST(SearchScale, CallsGrowWithStrategiesAndNotWithDevices) {
  const Machine machine = small_machine();
  std::int64_t calls_of_64 = 0;
  for (const int devices : {64, 512, 4096}) {
    const TableModel model;
    const PlanResult found = find_plans(model, machine, {.devices = devices, .batch = 4096});
    EXPECT_EQ(model.ledger_calls, found.listed);
    EXPECT_GE(model.cost_calls, found.fitting);
    const std::int64_t others = model.cost_calls - found.fitting - found.simulated;
    EXPECT_LE(others, 20) << "the families that do not fit, and the plans nearest to them";
    EXPECT_LT(found.simulated, found.listed / 50);
    std::cout << devices << " devices: " << found.listed << " strategies, " << found.simulated
              << " simulated with " << found.tables << " tables\n";
    if (calls_of_64 == 0) calls_of_64 = model.ledger_calls;
    EXPECT_LT(model.ledger_calls, 2 * calls_of_64);
  }
}

// A model that measures is not measured for other numbers of devices.
TEST(SearchScale, TriesNoNewTensorRanksOfAModelThatMeasures) {
  Machine machine = small_machine();
  TableModel model;
  model.measured = true;
  EXPECT_THROW(find_plans(model, machine, {.devices = 26, .batch = 15, .kept = {.pipeline = 1}}),
               UsageError);
  EXPECT_THAT(model.tensors, testing::ElementsAre(1, 2, 13, 26));
  model.tensors.clear();
  machine.memory.value = 1e7;
  const PlanResult found = find_plans(model, machine, {.devices = 2, .batch = 16});
  EXPECT_TRUE(found.best.empty());
  EXPECT_THAT(model.tensors, testing::ElementsAre(1, 2));
  EXPECT_THAT(plan_report({model, machine, {.devices = 2, .batch = 16}, found}, 100),
              HasSubstr("no multiple up to 8 times these fits"));
}

TEST(SearchScale, TwentyTwoLayersOnEightDevicesTakeLessThanHalfASecond) {
  const Machine machine = small_machine();
  const TableModel model;
  const double begin = processor_seconds();
  const PlanResult found = find_plans(model, machine, {.devices = 8, .batch = 64});
  EXPECT_LT(processor_seconds() - begin, 0.5);
  EXPECT_FALSE(found.best.empty());
  EXPECT_GT(found.listed, 200);
}

// The process that searches has less than 500 MB at its peak.
TEST(SearchScale, A175BillionModelNeedsLessThan500MB) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Machine machine = vtrain::machine();
    const PlanResult found =
        find_plans(PlannedGpt(gpt_175_billion, machine), machine, {.devices = 1024, .batch = 1536});
    _exit(found.best.empty() ? 1 : 0);
  }
  int status = 0;
  rusage usage{};
  ASSERT_EQ(wait4(child, &status, 0, &usage), child);
  EXPECT_EQ(status, 0);
  std::cout << "peak " << usage.ru_maxrss / 1000 << " MB\n";
  EXPECT_LT(usage.ru_maxrss, 500'000);  // kB
}

// By hand: 24 layers in each stage, 12 micro-batches of 4 examples, whole recomputation.
TEST(BytesSent, AreThoseOfThePublishedRowByHand) {
  const Machine machine = vtrain::machine();
  const GptModel gpt = {
      .layers = 48, .hidden = 8192, .heads = 64, .sequence = 2048, .vocabulary = 51200};
  const PlannedGpt model(gpt, machine);
  const Strategy strategy{
      .tensor = 8, .pipeline = 2, .data = 32, .micro_batch = 4, .recompute = BlockRecompute::All};
  const std::vector<LinkBytes> sent = model.sent(strategy, 12);
  ASSERT_EQ(sent.size(), 2u);
  const double message = 2.0 * 4 * 2048 * 8192;
  EXPECT_NEAR(sent[0].inside.tensor, 12 * (24 * 6 + 1) * 2 * 7 / 8. * message, 1);
  EXPECT_EQ(sent[0].between.tensor, 0);
  EXPECT_NEAR(sent[0].between.pipeline, 12 * message / 8, 1);
  EXPECT_EQ(sent[0].inside.pipeline, 0);
  // One rank of each of 32 nodes: a ring of 2 (n - 1) / n of the gradients.
  const double gradients = model.ledgers(strategy, 12)[0].gradients;
  EXPECT_NEAR(sent[0].between.data, 2 * 31 / 32. * gradients, 1);
  EXPECT_EQ(sent[0].inside.data, 0);
}

// Two data ranks of a node share what leaves it.
TEST(BytesSent, DependOnLevelsRowsAndPlaces) {
  const Machine machine = vtrain::machine();
  const GptModel gpt = {
      .layers = 24, .hidden = 2048, .heads = 16, .sequence = 1024, .vocabulary = 51200};
  const PlannedGpt model(gpt, machine);
  const auto data_bytes = [&](const Strategy& strategy) {
    const LinkBytes sent = model.sent(strategy, 4).front();
    return std::pair(sent.inside.data, sent.between.data);
  };
  const double bytes = model.ledgers({}, 4).front().gradients;
  using Pair = std::pair<double, double>;
  const auto expect_near = [](const Pair& found, const Pair& wanted) {
    EXPECT_NEAR(found.first, wanted.first, 1);
    EXPECT_NEAR(found.second, wanted.second, 1);
  };
  expect_near(data_bytes({.data = 8}), {2 * 7 / 8. * bytes, 0});
  expect_near(data_bytes({.data = 16}), {2 * 7 / 8. * bytes, 2 * 1 / 2. * bytes / 8});
  expect_near(data_bytes({.data = 8, .level = 1}), {2 * 7 / 8. * bytes, 0});
  expect_near(data_bytes({.data = 8, .level = 2}), {5 * 7 / 8. * bytes, 0});
  expect_near(data_bytes({.data = 8, .level = 3}), {12 * 7 / 8. * bytes, 0});
  // Two rows of a node each: the shards of an eighth are summed over both nodes.
  expect_near(data_bytes({.data = 16, .level = 3, .replicate = 2}),
              {12 * 7 / 8. * bytes, 2 * 1 / 2. * bytes / 8});
}

TEST(BytesSent, AreInTheReport) {
  const Machine machine = vtrain::machine();
  const GptModel gpt = {
      .layers = 24, .hidden = 2048, .heads = 16, .sequence = 1024, .vocabulary = 51200};
  const PlannedGpt model(gpt, machine);
  const PlanRequest request{.devices = 16, .batch = 64, .kept = parse_kept({"tensor=2"})};
  const PlanResult found = find_plans(model, machine, request);
  const ReportOf report{model, machine, request, found};
  const auto json = nlohmann::json::parse(plan_json(report));
  const auto& sent = json["plans"][0]["sent_bytes"];
  const LinkBytes& plan = found.best.front().sent;
  EXPECT_NEAR(sent["inside_node"]["tensor"].get<double>(), plan.inside.tensor, 1);
  EXPECT_NEAR(sent["between_nodes"]["data"].get<double>(), plan.between.data, 1);
  EXPECT_GT(plan.inside.tensor, 0);
  EXPECT_GT(plan.between.total(), 0);
  EXPECT_THAT(explained(report, found.best.front(), 400), HasSubstr("sends"));
}

TEST(Nodes, HaveTheSameNumberOfDevices) {
  const Machine machine = vtrain::machine();
  EXPECT_EQ(on_nodes(machine, 16, 2).devices_per_node, 8);
  EXPECT_EQ(on_nodes(machine, 16, 8).devices_per_node, 2);
  const auto refusal = [&](int devices, int nodes) {
    try {
      on_nodes(machine, devices, nodes);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(refusal(16, 3), "3 nodes do not divide 16 devices\n  Nearest that do: 2 and 4 nodes.");
  EXPECT_EQ(refusal(16, 1),
            "16 devices in each of 1 node are more than the 8 of a node of a100-8-per-node\n"
            "  Nearest that do: 2 nodes.");
  EXPECT_THAT(refusal(4, 8), HasSubstr("Nearest that do: 4 nodes"));
}

// Tensor ranks divide the smaller node, and groups of data ranks leave it earlier.
TEST(Nodes, ChangePlacesAndRules) {
  const GptModel gpt = {
      .layers = 24, .hidden = 2048, .heads = 16, .sequence = 1024, .vocabulary = 51200};
  const Machine two = on_nodes(vtrain::machine(), 4, 2);
  const PlannedGpt model(gpt, two);
  for (const Strategy& strategy : legal_strategies(model, {.devices = 4, .batch = 8}, nullptr))
    EXPECT_LE(strategy.tensor, 2);
  EXPECT_EQ(place_of_data_group({.data = 4}, two).per_node, 2);
  EXPECT_GT(model.sent({.data = 4}, 2).front().between.data, 0);
}

TEST(Nodes, RefuseNumbersBelowOne) {
  for (const auto& [devices, nodes] :
       {std::pair(0, 1), std::pair(-8, 1), std::pair(8, 0), std::pair(8, -2)})
    EXPECT_THROW(on_nodes(vtrain::machine(), devices, nodes), UsageError)
        << devices << " " << nodes;
}

}  // namespace
}  // namespace trestle::plan
