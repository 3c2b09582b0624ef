// The schedule that the search makes, against every fixed one.
#include "trestle/plan/schedules/find_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/plan/schedules/fill_weight_grads.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/validate.h"
#include "trestle/simulate/simulate.h"

namespace trestle::plan {
namespace {

using schedule::Kind;
using ::testing::HasSubstr;

// A rank's layers take these times in all; more stages on a rank take a part each.
struct Times {
  double forward = 1, input_grad = 1, weight_grad = 1, route = 0;
  Bytes saved = 1000, kept = 400, persistent = 2000, gradients = 500;
  double spread = 0;  // of the stages' times
  std::uint64_t seed = 1;
};

PlacedStages stages_of(const Times& times, const std::vector<int>& rank_of_stage) {
  const auto stages = rank_of_stage.size();
  const int ranks = 1 + *std::max_element(rank_of_stage.begin(), rank_of_stage.end());
  const double part = static_cast<double>(ranks) / static_cast<double>(stages);
  const auto bytes = [&](Bytes whole) {
    return static_cast<Bytes>(static_cast<double>(whole) * part);
  };
  std::mt19937_64 random(times.seed);
  std::uniform_real_distribution<double> factor(1 - times.spread, 1 + times.spread);
  PlacedStages placed;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const double of_stage = part * (times.spread > 0 ? factor(random) : 1);
    placed.costs.stages.push_back({.forward = times.forward * of_stage,
                                   .backward = (times.input_grad + times.weight_grad) * of_stage,
                                   .input_grad = times.input_grad * of_stage,
                                   .weight_grad = times.weight_grad * of_stage,
                                   .persistent = bytes(times.persistent),
                                   .gradients = bytes(times.gradients),
                                   .saved = bytes(times.saved),
                                   .kept_for_weights = bytes(times.kept)});
  }
  placed.routes = schedule::main_lane(static_cast<int>(stages));
  for (std::size_t route = 0; route < placed.routes.size(); ++route)
    placed.costs.routes.push_back({.seconds = times.route, .bytes = 10});
  return placed;
}

ScheduleQuestion question_of(const Times& times, int ranks, int micro_batches, Bytes memory = 0) {
  return {.ranks = ranks,
          .micro_batches = micro_batches,
          .stages = [times](const std::vector<int>& rank_of_stage) -> std::optional<PlacedStages> {
            return stages_of(times, rank_of_stage);
          },
          .memory = memory};
}

const SimulatedSchedule& fixed(const ScheduleAnswer& answer, const std::string& name) {
  for (const auto& one : answer.fixed)
    if (one.name == name) return one;
  throw UsageError("no schedule " + name);
}

TEST(FindSchedule, IsNeverSlowerThanAFixedOneThatFits) {
  int made = 0;
  for (const int ranks : {1, 2, 3, 5})
    for (const int micro_batches : {1, 4, 12})
      for (const Times& times :
           {Times{}, Times{.input_grad = 1.3, .weight_grad = 0.6, .route = 0.2},
            Times{.weight_grad = 2, .spread = 0.4, .seed = 3},
            Times{.forward = 0.5, .route = 0.7, .spread = 0.2, .seed = 9}}) {
        SCOPED_TRACE(text(ranks, " ranks, ", micro_batches, " micro-batches, W ", times.weight_grad,
                          ", route ", times.route));
        const ScheduleAnswer free = find_schedule(question_of(times, ranks, micro_batches));
        ASSERT_TRUE(free.best);
        for (const Bytes memory : {free.fixed.back().peak, fixed(free, "1f1b").peak,
                                   fixed(free, "1f1b").peak * 3 / 4, Bytes{0}}) {
          const ScheduleAnswer answer =
              find_schedule(question_of(times, ranks, micro_batches, memory));
          bool any_fits = false;
          for (const auto& one : answer.fixed) {
            if (!one.fits) continue;
            any_fits = true;
            ASSERT_TRUE(answer.best);
            EXPECT_LE(answer.best->seconds, one.seconds) << one.name;
          }
          if (!any_fits) continue;
          EXPECT_TRUE(answer.best->fits);
          schedule::validate(answer.best->table);
          made += answer.best->name == "auto" ? 1 : 0;
        }
      }
  EXPECT_GT(made, 30);
}

TEST(FindSchedule, HasNoSpanBubbleWhereZbh2HasNone) {
  ScheduleQuestion question = question_of({}, 4, 12);
  question.stages_per_rank = {1};
  const ScheduleAnswer answer = find_schedule(question);
  const SimulatedSchedule& zb_h2 = fixed(answer, "zb_h2");
  EXPECT_EQ(schedule::span_bubble(zb_h2.timeline), 0);
  EXPECT_LE(answer.best->seconds, zb_h2.seconds);
}

// ZB-H1's W of one size leaves gaps where W is short: the search fills them.
TEST(FindSchedule, UsesMeasuredTimes) {
  const Times times{.forward = 1, .input_grad = 1.4, .weight_grad = 0.7, .route = 0.1};
  ScheduleQuestion question = question_of(times, 4, 16);
  question.stages_per_rank = {1};
  const ScheduleAnswer answer = find_schedule(question);
  EXPECT_EQ(answer.best->name, "auto");
  EXPECT_LT(answer.best->seconds, 0.99 * answer.fixed.front().seconds);
  EXPECT_FALSE(answer.best->made_from.empty());
  EXPECT_FALSE(answer.trades().empty());
}

TEST(FindSchedule, KeepsTheMemoryOfARank) {
  const Times times{.saved = 1000, .kept = 900};
  const ScheduleAnswer free = find_schedule(question_of(times, 4, 12));
  const Bytes limit = fixed(free, "1f1b").peak;
  const ScheduleAnswer answer = find_schedule(question_of(times, 4, 12, limit));
  ASSERT_TRUE(answer.best);
  EXPECT_LE(answer.best->peak, limit);
  EXPECT_LT(answer.best->seconds, fixed(free, "1f1b").seconds);
  EXPECT_GE(answer.best->seconds, free.best->seconds);
  EXPECT_FALSE(find_schedule(question_of(times, 4, 12, 1)).best);
}

TEST(FindSchedule, KeepsTheMemoryOfEachRank) {
  const Times times{.saved = 1000, .kept = 900};
  const ScheduleAnswer free = find_schedule(question_of(times, 2, 6));
  ScheduleQuestion question = question_of(times, 2, 6);
  question.memory_of_rank = {fixed(free, "1f1b").timeline.peak_bytes[0],
                             fixed(free, "1f1b").timeline.peak_bytes[1]};
  ASSERT_LT(question.memory_of_rank[1], question.memory_of_rank[0]);
  const ScheduleAnswer answer = find_schedule(question);
  EXPECT_TRUE(fixed(answer, "1f1b").fits);
  EXPECT_FALSE(fixed(answer, "gpipe").fits);
  ASSERT_TRUE(answer.best);
  for (std::size_t rank = 0; rank < 2; ++rank)
    EXPECT_LE(answer.best->timeline.peak_bytes[rank], question.memory_of_rank[rank]);
}

TEST(FindSchedule, RefusesASearchOfMinutes) {
  EXPECT_THAT(support::message_of<UsageError>([] { find_schedule(question_of({}, 1000, 1000)); }),
              HasSubstr("1,000 ranks and 1,000 micro-batches would take minutes"));
}

TEST(FindSchedule, HasAllForwardsFirstForALossOfTheWholeBatch) {
  ScheduleQuestion question = question_of({}, 4, 8);
  question.whole_batch_loss = true;
  const ScheduleAnswer answer = find_schedule(question);
  ASSERT_TRUE(answer.best);
  EXPECT_TRUE(schedule::all_forwards_first(answer.best->table));
  for (const auto& one : answer.fixed) EXPECT_TRUE(schedule::all_forwards_first(one.table));
  EXPECT_GT(answer.refused.size(), 5U);
}

TEST(FindSchedule, SaysWhySchedulesAreLeftOut) {
  const ScheduleAnswer answer = find_schedule(question_of({}, 4, 2));
  bool found = false;
  for (const auto& [name, reason] : answer.refused) {
    if (name != "dualpipev") continue;
    found = true;
    EXPECT_THAT(reason, HasSubstr("2 micro-batches"));
  }
  EXPECT_TRUE(found);
  EXPECT_THAT(support::message_of<UsageError>([] { find_schedule(question_of({}, 0, 2)); }),
              HasSubstr("at least 1"));
}

// The reasons are printed behind "left out NAME: ", each on one line.
TEST(FindSchedule, LeavesOutWhatTheQuestionDoesNotTry) {
  ScheduleQuestion question = question_of({}, 4, 1);
  question.stages_per_rank = {1};
  const ScheduleAnswer answer = find_schedule(question);
  const auto reason = [&](const std::string& left_out) {
    for (const auto& [name, why] : answer.refused)
      if (name == left_out) return why;
    return std::string("not left out");
  };
  for (const char* name : {"interleaved_1f1b", "interleaved_zero_bubble", "looped_bfs"})
    EXPECT_EQ(reason(name), "it takes several stages on each rank, and only 1 is tried") << name;
  EXPECT_EQ(reason("dualpipev"),
            "schedule 'dualpipev' cannot have 1 micro-batch for 8 stages. Give at least 8.");
}

// A model of five layers has no two stages for each of three ranks.
TEST(FindSchedule, LeavesOutCutsThatTheModelDoesNotHave) {
  ScheduleQuestion question = question_of({}, 3, 6);
  question.stages = [](const std::vector<int>& rank_of_stage) -> std::optional<PlacedStages> {
    if (rank_of_stage.size() > 5) return std::nullopt;
    return stages_of({}, rank_of_stage);
  };
  const ScheduleAnswer answer = find_schedule(question);
  for (const auto& one : answer.fixed) EXPECT_EQ(one.stages_per_rank, 1) << one.name;
  EXPECT_EQ(answer.best->stages_per_rank, 1);
}

TEST(FindSchedule, TakesBelowFiveSecondsFor16RanksOf64MicroBatches) {
  const Stopwatch watch;
  const ScheduleAnswer answer =
      find_schedule(question_of({.weight_grad = 0.8, .spread = 0.2, .seed = 5}, 16, 64));
  EXPECT_GT(answer.simulated, 15);
  EXPECT_LT(watch.seconds(), 5) << answer.simulated << " schedules";
}

TEST(FillWeightGrads, KeepsTheOrderOfForwardsAndBackwards) {
  for (const auto& known : schedule::known_schedules()) {
    const int each = schedule::stages_per_rank(known.name, 0);
    const auto table = schedule::generate(
        known.name, {.stages = 3 * each, .micro_batches = 6, .stages_per_rank = each});
    const PlacedStages stages = stages_of({.spread = 0.3, .seed = 2}, table.rank_of_stage);
    const auto filled =
        fill_weight_grads(table, stages.routes, stages.costs, {.patience = 0.5}).table;
    schedule::validate(filled);
    const auto order = [](const std::vector<schedule::Action>& row) {
      std::string words;
      for (const auto& action : row) {
        if (const auto cell = forward_in(action))
          words += text("F", cell->stage, ".", cell->micro_batch, " ");
        if (const auto cell = backward_in(action))
          words += text("B", cell->stage, ".", cell->micro_batch, " ");
      }
      return words;
    };
    for (std::size_t rank = 0; rank < table.ranks.size(); ++rank)
      EXPECT_EQ(order(table.ranks[rank]), order(filled.ranks[rank])) << known.name;
  }
}

}  // namespace
}  // namespace trestle::plan
