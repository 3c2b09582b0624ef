// NORM and STEP in a table: their places, the rules for them, and their text form.
#include "trestle/schedule/optimizer_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/schedule/tables.h"
#include "trestle/base/error.h"
#include "trestle/schedule/data_parallel.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/validate.h"

namespace trestle::schedule {
namespace {

using testing::HasSubstr;

std::string steps_error(const std::vector<std::string>& rows) {
  try {
    validate(tables::from_rows(rows));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

std::string last_cells(const Schedule& schedule, std::size_t rank, std::size_t count) {
  std::string cells;
  const auto& row = schedule.ranks[rank];
  for (std::size_t i = row.size() - count; i < row.size(); ++i) cells += to_string(row[i]) + " ";
  return cells;
}

TEST(OptimizerSteps, ComeAfterAllOtherActionsOfEachRank) {
  for (const auto& info : known_schedules()) {
    SCOPED_TRACE(info.name);
    std::vector<Recompute> modes = {Recompute::Always, Recompute::Never, Recompute::ExceptLast};
    const Schedule made = tables::table_on_ranks(info, 3, 4);
    modes.resize(static_cast<std::size_t>(made.stages), Recompute::Always);
    const Schedule table =
        add_optimizer_steps(add_reductions(lower(made, {.recompute = std::move(modes)})));
    EXPECT_NO_THROW(validate(table));
    EXPECT_EQ(last_cells(table, 1, 4), made.stages == 3 ? "1REDUCE_GRAD 1RESHARD 1NORM 1STEP "
                                                        : "1RESHARD 1NORM 1STEP 4STEP ");
  }
  const Schedule looped =
      add_optimizer_steps(lower(tables::two_stages_per_rank(tables::Placement::V, 2, 2), {}));
  EXPECT_NO_THROW(validate(looped));
  EXPECT_EQ(last_cells(looped, 0, 3), "0NORM 0STEP 3STEP ");
  EXPECT_EQ(last_cells(looped, 1, 3), "1NORM 1STEP 2STEP ");
}

TEST(OptimizerSteps, SurviveARoundTripThroughAFile) {
  const Schedule table =
      add_optimizer_steps(lower(generate("1f1b", {.stages = 2, .micro_batches = 3}), {}));
  const std::string csv = to_csv(table);
  EXPECT_THAT(csv, HasSubstr(",0NORM,0STEP\n"));
  EXPECT_EQ(parse_csv(csv, table.name), table);
  // In a table without transfers too: lower() keeps them at the end.
  const Schedule lowered =
      lower(tables::from_rows({"0F0 0B0 0NORM 0STEP", "1F0 1B0 1NORM 1STEP"}), {});
  EXPECT_EQ(last_cells(lowered, 1, 4), "1B0 1SEND_B0 1NORM 1STEP ");
}

TEST(OptimizerSteps, AreRejectedInOtherPlaces) {
  EXPECT_THAT(steps_error({"0F0 0B0 0NORM 0STEP", "1F0 1B0 1STEP"}),
              HasSubstr("rank 0 has a NORM and rank 1 has none"));
  EXPECT_THAT(steps_error({"0F0 0NORM 0B0 0STEP"}), HasSubstr("0NORM comes before 0B0"));
  EXPECT_THAT(steps_error({"0F0 0B0 0NORM 0REDUCE_GRAD 0STEP"}),
              HasSubstr("0NORM comes before 0REDUCE_GRAD"));
  // The other rank would wait for the gradient, and this rank for the other's NORM.
  const std::string waits =
      steps_error({"0F0 0SEND_F0 0RECV_B0 0B0 0NORM", "1RECV_F0 1F0 1B0 1NORM 1SEND_B0"});
  EXPECT_THAT(waits, HasSubstr("1NORM comes before 1SEND_B0"));
  EXPECT_THAT(steps_error({"0F0 0B0 1F0 1B0 0NORM 1NORM"}),
              HasSubstr("1B0"));  // a NORM before the last stage's backward
  EXPECT_THAT(steps_error({"0F0 1F0 1B0 0B0 0NORM 1NORM"}),
              HasSubstr("rank 0 has a second NORM, 1NORM"));
  EXPECT_THAT(steps_error({"0F0 0B0 0STEP 0NORM"}), HasSubstr("0STEP comes before 0NORM"));
  EXPECT_THAT(steps_error({"0F0 0STEP 0B0"}), HasSubstr("0STEP comes before 0B0"));
  EXPECT_THAT(steps_error({"0F0 0B0 0STEP 0REDUCE_GRAD"}),
              HasSubstr("0STEP comes before 0REDUCE_GRAD"));
  EXPECT_THAT(steps_error({"0F0 0B0 0NORM 0STEP 0STEP"}), HasSubstr("0STEP occurs twice"));
  EXPECT_THAT(steps_error({"0F0 0B0 0STEP", "1F0 1B0 0STEP"}),
              HasSubstr("0STEP is on rank 1, but stage 0 is on rank 0"));
  EXPECT_EQ(steps_error({"0F0 1F0 1B0 1STEP 0B0 0STEP"}),
            "no error");  // without a NORM a STEP may come early
}

Event event(int rank, Kind kind, double begin, double end) {
  return {.rank = rank,
          .action = {.kind = kind, .stage = static_cast<std::int16_t>(rank)},
          .begin = begin,
          .end = end};
}

TEST(OptimizerSteps, AddTheSecondsInWhichTheyRunAlone) {
  Timeline timeline;
  EXPECT_EQ(optimizer_seconds(timeline), 0);
  // Rank 1 waits in its NORM for the backward of rank 0.
  timeline.events = {event(0, Kind::Backward, 0, 4), event(0, Kind::Norm, 4, 5),
                     event(0, Kind::Step, 5, 7),     event(1, Kind::Backward, 0, 2),
                     event(1, Kind::Norm, 2, 5),     event(1, Kind::Step, 5, 6)};
  EXPECT_EQ(optimizer_seconds(timeline), 3);
  // One thread runs both ranks, with rank 1's NORM before rank 0's backward.
  timeline.events = {event(1, Kind::Backward, 0, 2), event(1, Kind::Norm, 2, 3),
                     event(0, Kind::Backward, 3, 5), event(0, Kind::Norm, 5, 6),
                     event(0, Kind::Step, 6, 7),     event(1, Kind::Step, 7, 8)};
  EXPECT_EQ(optimizer_seconds(timeline), 4);
}

}  // namespace
}  // namespace trestle::schedule
