// trestle calibrate on this machine, and the predictions that read its tables.
#include "trestle/train/calibrate/calibrate.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/plan/calibrated_machine.h"
#include "trestle/base/error.h"
#include "trestle/base/median.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/device/threads.h"
#include "trestle/plan/gpt/planned_gpt.h"
#include "trestle/plan/search/search.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/calibrate/derived_figures.h"
#include "trestle/train/calibrate/this_machine.h"
#include "trestle/train/planner/host_times.h"
#include "trestle/train/table_costs.h"

namespace trestle::train {
namespace {

using plan::Origin;
using testing::AllOf;
using testing::Gt;
using testing::HasSubstr;
using testing::Lt;

// Seconds of a square product in fp32, as the test measures them.
double seconds_of_product(std::int64_t rows) {
  const at::Tensor a = at::rand({rows, rows}), b = at::rand({rows, rows});
  std::vector<double> runs;
  for (int run = 0; run < 9; ++run) {
    const Stopwatch watch;
    (void)at::mm(a, b);
    runs.push_back(watch.seconds());
  }
  return median(runs);
}

// Other work on this machine may slow one size.
void expect_rising(const std::vector<double>& seconds, const std::string& what) {
  constexpr double noise = 3;
  for (std::size_t i = 1; i < seconds.size(); ++i)
    EXPECT_GT(noise * seconds[i], seconds[i - 1]) << what << ", size " << i;
  // --quick measures one size of a type whose products are slow here.
  if (seconds.size() > 1) {
    EXPECT_GT(seconds.back(), seconds.front()) << what;
  }
}

class Calibrated : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    measured_ = calibrate(nullptr, {.name = "mine",
                                    .ranks = {2},
                                    .quick = true,
                                    .progress = [](const std::string& what, int done, int all) {
                                      EXPECT_LE(done, all);
                                      EXPECT_EQ(what.empty(), done == all);
                                      steps_ = all;
                                    }});
  }
  static void TearDownTestSuite() { set_worker_threads(core_count()); }
  static const plan::Machine& machine() { return measured_.machine; }

  static Calibration measured_;
  static int steps_;
};

Calibration Calibrated::measured_;
int Calibrated::steps_ = 0;

TEST_F(Calibrated, QuickFileIsReadAgainAndBelongsToThisMachine) {
  const std::string words = plan::to_toml(machine());
  const plan::Machine again = plan::parse_machine(words, "mine.toml");
  EXPECT_EQ(plan::to_toml(again), words);
  EXPECT_NO_THROW(plan::check_measured_on(again.measured_on, this_machine(), "mine.toml"));
  EXPECT_EQ(again.measured_on->cores, core_count());
  EXPECT_LT(measured_.seconds, 60);
  EXPECT_GT(steps_, 10);
}

TEST_F(Calibrated, ProductsTakeAsLongAsDirectOnes) {
  ASSERT_FALSE(machine().products.empty());
  const plan::ProductTable& table = machine().products.front();
  EXPECT_EQ(table.type, "fp32");
  EXPECT_EQ(table.shape, plan::ProductShape::Square);
  const double direct = seconds_of_product(static_cast<std::int64_t>(table.sizes.back()));
  // Other tests run beside this one for a part of the time: a factor of 4 was seen. A wrong unit is
  // a factor of 1,000.
  EXPECT_THAT(table.seconds.back(), AllOf(Gt(direct / 10), Lt(direct * 10)));
  for (const plan::ProductTable& one : machine().products)
    expect_rising(one.seconds, text(to_string(one.shape), " ", one.type));
}

TEST_F(Calibrated, FiguresArePlausible) {
  const auto is_measured = [](const plan::Figure& figure, double least, double most) {
    EXPECT_EQ(figure.origin, Origin::Measured) << figure.from;
    EXPECT_GE(figure.value, least) << figure.from;
    EXPECT_LE(figure.value, most) << figure.from;
    EXPECT_GE(figure.spread, 0) << figure.from;
  };
  is_measured(machine().peak, 1e8, 1e14);
  is_measured(machine().memory_bandwidth, 1e8, 1e13);
  is_measured(machine().memory, 1e8, 1e14);
  is_measured(machine().reserved, 1e6, machine().memory.value / 2);
  const plan::TransformerTimes& times = machine().transformer;
  is_measured(times.matrix_efficiency, 0.05, 1);
  is_measured(times.product_cost, 0, 1e11);
  is_measured(times.score_passes, 0.5, 1e4);
  is_measured(times.activation_passes, 0.1, 1e4);
  is_measured(times.layer_floor, 1e-6, 1);
  is_measured(times.head_efficiency, 0.01, 1);
  is_measured(times.step_seconds, 1e-8, 0.1);
  is_measured(times.optimizer_bytes, 1, 1000);
  is_measured(times.spread, 0, 1);
  is_measured(*machine().fixed.kernel_start, 1e-8, 1e-2);
  is_measured(*machine().fixed.process_memory, 1e6, 1e12);
  for (const plan::OptimizerTime& one : machine().optimizers)
    is_measured(one.seconds_per_byte, 1e-12, 1e-6);
  EXPECT_EQ(machine().optimizers.size(), 5U);
  EXPECT_EQ(machine().copies.size(), 1U);  // a CPU has one memory
}

TEST_F(Calibrated, MessagesRiseWithTheirSize) {
  ASSERT_EQ(machine().messages.size(), 4U);  // two ranks: three collectives, and a message
  for (const plan::MessageTable& table : machine().messages) {
    EXPECT_EQ(table.over, "threads");
    EXPECT_EQ(table.ranks, 2);
    expect_rising(table.seconds, std::string(to_string(table.kind)));
    EXPECT_THAT(table.seconds.front(), AllOf(Gt(1e-7), Lt(0.2)));
    EXPECT_THAT(table.bytes.back() / table.seconds.back(), AllOf(Gt(1e6), Lt(1e12)));
  }
  EXPECT_EQ(machine().inside.bandwidth.origin, Origin::Measured);
  EXPECT_EQ(machine().between.bandwidth.origin, Origin::Assumed);
  EXPECT_THAT(machine().between.bandwidth.from, HasSubstr("no second host took part"));
  EXPECT_EQ(machine().all_reduce.size(), 1U);
}

TEST_F(Calibrated, PlansAGptByItsFigures) {
  const plan::GptModel gpt{
      .layers = 2, .hidden = 256, .heads = 4, .sequence = 128, .vocabulary = 512};
  const plan::PlannedGpt model(gpt, machine());
  const auto found = plan::find_plans(model, machine(), {.devices = 2, .batch = 4});
  ASSERT_FALSE(found.best.empty());
  EXPECT_THAT(model.sources(machine()), HasSubstr("measured on"));
}

TEST(Calibrate, RefusesGroupsAndDevicesThatDoNotExist) {
  EXPECT_THROW(calibrate(nullptr, {.device = "tpu"}), UsageError);
  // A UsageError without a GPU, or a StateError where virtual devices were installed before.
  EXPECT_THROW(calibrate(nullptr, {.device = "cuda:0"}), Error);
  EXPECT_EQ(default_group_sizes(1), std::vector<int>{});
  EXPECT_EQ(default_group_sizes(6), (std::vector<int>{2, 4, 6}));
}

// A file without tables: what cannot be measured is assumed, and says so.
TEST(Calibrate, LinksWithoutMessagesAreAssumed) {
  plan::Machine machine = plan::calibrated_machine();
  machine.messages.clear();
  EXPECT_EQ(counted_transport(machine), "");
  derive_links("", &machine);
  EXPECT_EQ(machine.inside.bandwidth.origin, Origin::Assumed);
  EXPECT_EQ(machine.inside.bandwidth.value, 1e6 / 1e-4 / 2);
  EXPECT_THAT(machine.inside.bandwidth.from, HasSubstr("half the rate of a copy"));
  EXPECT_TRUE(machine.all_reduce.empty());
}

TEST(TableCosts, OneMessageTakesTheTimeOfItsTable) {
  const plan::Machine machine = plan::calibrated_machine();
  const MessageCost other{.seconds = 7};
  for (const double bytes : {500.0, 1000.0, 6000.0, 50'000.0})
    for (const int ranks : {2, 3, 4, 9}) {
      const MessageCost cost =
          cost_in_tables(machine.messages, plan::Exchange::AllReduce, ranks, bytes, other);
      const double known =
          plan::message_seconds(machine.messages, {.over = "gloo", .ranks = ranks, .bytes = bytes})
              .value();
      EXPECT_NEAR(seconds_of({.kind = MessageKind::AllReduce, .bytes = static_cast<Bytes>(bytes)},
                             ranks, cost),
                  known, 1e-9 * known);
    }
  EXPECT_EQ(cost_in_tables(machine.messages, plan::Exchange::Send, 2, 1, other).seconds, 7);
  EXPECT_EQ(cost_in_tables({}, plan::Exchange::AllReduce, 2, 1, other).seconds, 7);
}

TEST(TableCosts, HostTimesNameWhatAFileLacks) {
  recipe::Recipe recipe;
  recipe.optimizer.name = "adamw";
  const auto lack = [&](const plan::Machine& machine, int ranks) -> std::string {
    try {
      (void)host_times_of(machine, recipe, {.ranks = ranks}, "mine.toml");
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing";
  };
  plan::Machine machine = plan::calibrated_machine();
  EXPECT_EQ(lack(machine, 1), "nothing");
  EXPECT_DOUBLE_EQ(host_times_of(machine, recipe, {}, "mine.toml").optimizer_seconds_per_byte,
                   4e-10);
  EXPECT_THAT(lack(machine, 2), HasSubstr("mine.toml: has no table [[message]] with kind = "
                                          "\"reduce_scatter\" and reach = \"inside\""));
  recipe.optimizer.name = "sgd";
  recipe.optimizer.momentum = 0.9;
  EXPECT_THAT(lack(machine, 1), HasSubstr("has no 'sgd_momentum' in [optimizer]"));
}

}  // namespace
}  // namespace trestle::train
