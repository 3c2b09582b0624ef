#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "trestle/base/text.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/simulate/simulate.h"

// Published numbers, which the simulator reproduces to the printed digit.
namespace trestle::simulate {
namespace {

using schedule::BackwardOrder;
using schedule::Recompute;
using schedule::Schedule;
using schedule::Timeline;
using testing::Each;
using testing::ElementsAre;

// Qi et al. 2023, table of bubble rates: profiled times in milliseconds, then the printed rates.
struct Row {
  const char* model;
  int stages;
  int micro_batches;
  double forward;
  double input_grad;
  double weight_grad;
  double transfer;
  double one_f_one_b;
  double h1;
  double h2;
};

constexpr Row most_rows[] = {
    {"1.5B", 8, 24, 18.522, 18.086, 9.337, 0.601, .2431, .1585, .1083},
    {"1.5B", 8, 32, 18.513, 18.086, 9.331, 0.626, .1985, .1242, .0837},
    {"1.5B", 8, 64, 18.546, 18.097, 9.321, 0.762, .1240, .0674, .0444},
    {"6.2B", 8, 24, 29.718, 29.444, 19.927, 0.527, .2347, .1323, .0698},
    {"6.2B", 8, 32, 29.802, 29.428, 19.530, 0.577, .1898, .1045, .0559},
    {"6.2B", 8, 64, 29.935, 29.621, 19.388, 0.535, .1091, .0554, .0294},
    {"14.6B", 16, 48, 11.347, 11.248, 8.132, 0.377, .2552, .1397, .0672},
    {"14.6B", 16, 64, 11.307, 11.254, 8.101, 0.379, .2082, .1088, .0516},
    {"14.6B", 16, 128, 11.325, 11.308, 8.109, 0.378, .1251, .0576, .0266},
};

// The paper's bubble rate: the longest span of a stage, from its first begin to its last end,
// relative to the work of a stage. It is not the makespan, because without a synchronised optimizer
// step stages end at different times.
double bubble(const Row& row, const Schedule& table) {
  const Schedule lowered = lower(table, {});
  Costs costs;
  costs.stages.assign(static_cast<std::size_t>(row.stages),
                      {.forward = row.forward,
                       .backward = row.input_grad + row.weight_grad,
                       .input_grad = row.input_grad,
                       .weight_grad = row.weight_grad});
  costs.routes.assign(lowered.routes.size(), {.seconds = row.transfer});
  const Timeline timeline = simulate(lowered, costs);
  double longest = 0;
  for (int rank = 0; rank < timeline.rank_count; ++rank) {
    double first = INFINITY;
    double last = 0;
    for (const auto& event : timeline.events) {
      if (event.rank != rank || !is_compute(event.action.kind)) continue;
      first = std::min(first, event.begin);
      last = std::max(last, event.end);
    }
    longest = std::max(longest, last - first);
  }
  const double work = row.micro_batches * (row.forward + row.input_grad + row.weight_grad);
  return (longest - work) / longest;
}

long printed(double rate) { return std::lround(rate * 10'000); }

class PublishedBubbles : public testing::TestWithParam<Row> {};

TEST_P(PublishedBubbles, OneForwardOneBackward) {
  const Row& row = GetParam();
  const Schedule table =
      schedule::generate("1f1b", {.stages = row.stages, .micro_batches = row.micro_batches});
  EXPECT_EQ(printed(bubble(row, table)), printed(row.one_f_one_b));
}

TEST_P(PublishedBubbles, ZeroBubbleH1) {
  const Row& row = GetParam();
  const Schedule table =
      schedule::generate("zb_h1", {.stages = row.stages, .micro_batches = row.micro_batches});
  EXPECT_EQ(printed(bubble(row, table)), printed(row.h1));
}

TEST_P(PublishedBubbles, ZeroBubbleH2) {
  const Row& row = GetParam();
  const Schedule table =
      schedule::generate("zb_h2", {.stages = row.stages, .micro_batches = row.micro_batches});
  EXPECT_EQ(printed(bubble(row, table)), printed(row.h2));
}

INSTANTIATE_TEST_SUITE_P(Table, PublishedBubbles, testing::ValuesIn(most_rows),
                         [](const auto& param) {
                           std::string name =
                               text(param.param.model, "_", param.param.micro_batches);
                           name.replace(name.find('.'), 1, "_");
                           return name;
                         });

// Idle time and live activations of four stages with 16 micro-batches, F = I = W = 1: ideal 48.
Timeline four_by_sixteen(const Schedule& table) {
  return simulate(lower(table, {}), unit_costs(4));
}

std::vector<double> idle(const Timeline& timeline) {
  std::vector<double> times;
  for (int rank = 0; rank < timeline.rank_count; ++rank) {
    times.push_back(makespan(timeline) - busy(timeline)[static_cast<std::size_t>(rank)]);
  }
  return times;
}

TEST(IdealIdle, GPipe) {
  for (const auto order : {BackwardOrder::Forward, BackwardOrder::Reverse}) {
    const Timeline timeline = four_by_sixteen(
        schedule::generate("gpipe", {.stages = 4, .micro_batches = 16, .backward_order = order}));
    EXPECT_THAT(idle(timeline), Each(9.0));
    EXPECT_THAT(peak_live_activations(timeline), Each(16));
    EXPECT_DOUBLE_EQ(idle_share_of_makespan(timeline), 3.0 / 19);
    EXPECT_DOUBLE_EQ(idle_share_of_ideal(timeline), 3.0 / 16);
  }
}

TEST(IdealIdle, OneForwardOneBackward) {
  const Timeline timeline =
      four_by_sixteen(schedule::generate("1f1b", {.stages = 4, .micro_batches = 16}));
  EXPECT_THAT(idle(timeline), Each(9.0));
  EXPECT_THAT(peak_live_activations(timeline), ElementsAre(4, 3, 2, 1));
}

TEST(IdealIdle, ZeroBubble) {
  const Timeline h1 =
      four_by_sixteen(schedule::generate("zb_h1", {.stages = 4, .micro_batches = 16}));
  EXPECT_THAT(idle(h1), Each(3.0));
  EXPECT_THAT(peak_live_activations(h1), Each(4));
  const Timeline h2 =
      four_by_sixteen(schedule::generate("zb_h2", {.stages = 4, .micro_batches = 16}));
  EXPECT_THAT(peak_live_activations(h2), Each(7));
}

// Four stages, eight micro-batches, B = 2F, with recomputation that does not wait for the gradient.
double recompute_makespan(Recompute mode, BackwardOrder order) {
  const Schedule table =
      schedule::generate("gpipe", {.stages = 4, .micro_batches = 8, .backward_order = order});
  return makespan(
      simulate(lower(table, {.recompute = std::vector<Recompute>(4, mode)}), unit_costs(4)));
}

TEST(RecomputeMakespan, EarlyRecomputationHidesBehindTheWait) {
  for (const auto order : {BackwardOrder::Forward, BackwardOrder::Reverse}) {
    EXPECT_DOUBLE_EQ(recompute_makespan(Recompute::Never, order), 33);
    EXPECT_DOUBLE_EQ(recompute_makespan(Recompute::ExceptLast, order), 40);
    EXPECT_DOUBLE_EQ(recompute_makespan(Recompute::Always, order), 41);
  }
}

}  // namespace
}  // namespace trestle::simulate
