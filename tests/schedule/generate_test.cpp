#include "trestle/schedule/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/schedule/tables.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/csv.h"
#include "trestle/schedule/validate.h"

namespace trestle::schedule {
namespace {

using testing::HasSubstr;

std::string generate_error(std::string_view name, const GenerateOptions& options) {
  try {
    generate(name, options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Generate, GPipeBothBackwardOrders) {
  EXPECT_EQ(to_csv(generate("gpipe", {.stages = 2, .micro_batches = 3})),
            "0F0,0F1,0F2,0B2,0B1,0B0\n1F0,1F1,1F2,1B2,1B1,1B0\n");
  EXPECT_EQ(
      to_csv(generate("gpipe",
                      {.stages = 2, .micro_batches = 3, .backward_order = BackwardOrder::Forward})),
      "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
}

TEST(Generate, OneForwardOneBackward) {
  EXPECT_EQ(to_csv(generate("1f1b", {.stages = 3, .micro_batches = 4})),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
}

TEST(Generate, OneForwardOneBackwardWithFewerMicroBatchesThanStages) {
  EXPECT_EQ(to_csv(generate("1f1b", {.stages = 4, .micro_batches = 2})),
            "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n3F0,3B0,3F1,3B1\n");
}

// Megatron-LM takes a multiple of p micro-batches. Groups of p pass through the chunks. Rank r
// begins with min(2 (p - 1 - r) + (v - 1) p, m v) forwards.
std::string megatron_rows(int p, int v, int m) {
  std::string rows;
  for (int r = 0; r < p; ++r) {
    std::vector<std::string> forwards, backwards, row;
    for (int group = 0; group < m; group += p)
      for (int chunk = 0; chunk < v; ++chunk)
        for (int i = group; i < group + p; ++i) {
          forwards.push_back(text(chunk * p + r, "F", i));
          backwards.push_back(text((v - 1 - chunk) * p + r, "B", i));
        }
    const int warm_up = std::min(2 * (p - 1 - r) + (v - 1) * p, m * v);
    for (int n = 0; n < m * v + warm_up; ++n) {
      if (n < m * v) row.push_back(forwards[static_cast<std::size_t>(n)]);
      if (n >= warm_up) row.push_back(backwards[static_cast<std::size_t>(n - warm_up)]);
    }
    rows += join(row, ",") + "\n";
  }
  return rows;
}

TEST(Generate, InterleavedIsMegatronsForAMultipleOfTheRanks) {
  for (int p = 2; p <= 6; ++p)
    for (int v = 2; v <= 4; ++v)
      for (int m = p; m <= 4 * p; m += p)
        EXPECT_EQ(to_csv(generate("interleaved_1f1b",
                                  {.stages = p * v, .micro_batches = m, .stages_per_rank = v})),
                  megatron_rows(p, v, m))
            << p << " ranks, " << v << " chunks, " << m << " micro-batches";
}

TEST(Generate, OneStage) {
  EXPECT_EQ(to_csv(generate("1f1b", {.stages = 1, .micro_batches = 2})), "0F0,0B0,0F1,0B1\n");
}

TEST(Generate, UnknownNamesGetASuggestion) {
  EXPECT_THAT(generate_error("gpip", {}), HasSubstr("did you mean 'gpipe'?"));
  EXPECT_THAT(generate_error("1F1B", {}), HasSubstr("did you mean '1f1b'?"));
  EXPECT_THAT(generate_error("magic", {}), HasSubstr("Known: 1f1b, dualpipev, gpipe"));
}

TEST(Generate, RejectsNumbersOutOfRange) {
  EXPECT_THAT(generate_error("gpipe", {.stages = 0}), HasSubstr("0 stages"));
  EXPECT_THAT(generate_error("gpipe", {.stages = 100'000}), HasSubstr("100000 stages"));
  EXPECT_THAT(generate_error("1f1b", {.micro_batches = 0}), HasSubstr("0 micro-batches"));
  EXPECT_THAT(generate_error("1f1b", {.micro_batches = 1 << 30}), HasSubstr("micro-batches"));
  // Each number alone is in range; the table would need a terabyte.
  EXPECT_EQ(generate_error("gpipe", {.stages = 32'767, .micro_batches = 1 << 20}),
            "schedule 'gpipe' cannot have 32767 stages with 1048576 micro-batches: 34,358,689,792 "
            "forwards are more than 4,194,304 forwards\n"
            "  Give at most 128 micro-batches.");
}

TEST(Generate, RefusesStagesPerRankWithTheNearestNumbers) {
  EXPECT_THAT(generate_error("zbv", {.stages = 4, .micro_batches = 4}),
              HasSubstr("schedule 'zbv' cannot have 1 stage per rank\n  It has 2."));
  EXPECT_THAT(generate_error("gpipe", {.stages = 4, .micro_batches = 4, .stages_per_rank = 2}),
              HasSubstr("It has 1."));
  EXPECT_THAT(generate_error("looped_bfs", {.stages = 7, .micro_batches = 4, .stages_per_rank = 3}),
              HasSubstr("Give 6 or 9 stages."));
  EXPECT_THAT(generate_error("looped_bfs", {.stages = 2, .micro_batches = 4, .stages_per_rank = 3}),
              HasSubstr("Give 3 stages."));
  EXPECT_THAT(generate_error("looped_bfs", {.stages = 2, .stages_per_rank = 0}),
              HasSubstr("0 stages per rank"));
  EXPECT_THAT(generate_error("dualpipev", {.stages = 6, .micro_batches = 5, .stages_per_rank = 2}),
              HasSubstr("Give at least 6."));
  EXPECT_THAT(
      generate_error("interleaved_1f1b", {.stages = 6, .micro_batches = 10, .stages_per_rank = 2}),
      HasSubstr("Give 9 or 12 micro-batches."));
}

TEST(Generate, KnownSchedulesAreDescribedCorrectly) {
  ASSERT_FALSE(known_schedules().empty());
  EXPECT_TRUE(std::ranges::is_sorted(known_schedules(), {}, &ScheduleInfo::name));
  for (const ScheduleInfo& info : known_schedules()) {
    const Schedule schedule = tables::table_on_ranks(info, 3, 4);
    EXPECT_EQ(schedule.name, info.name);
    const auto splits = [](const Action& one) { return one.kind == Kind::InputGrad; };
    EXPECT_EQ(std::ranges::any_of(schedule.ranks[0], splits), info.splits_backward);
    EXPECT_FALSE(info.sizes.empty());
    EXPECT_EQ(all_forwards_first(schedule), info.all_forwards_first);
    EXPECT_FALSE(info.summary.empty());
  }
}

TEST(Generate, BackwardOrdersHaveNames) {
  EXPECT_EQ(parse_backward_order("reverse"), BackwardOrder::Reverse);
  EXPECT_EQ(parse_backward_order("forward"), BackwardOrder::Forward);
  EXPECT_THAT(backward_order_names(), testing::ElementsAre("reverse", "forward"));
  EXPECT_THROW(parse_backward_order("backward"), UsageError);
}

}  // namespace
}  // namespace trestle::schedule
