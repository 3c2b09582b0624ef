#include "trestle/view/text_grid.h"

#include <gmock/gmock.h>

#include "tests/view/samples.h"
#include "trestle/base/error.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/optimizer_steps.h"
#include "trestle/simulate/simulate.h"
#include "trestle/view/chrome_trace.h"
#include "trestle/view/labels.h"
#include "trestle/view/svg.h"

namespace trestle::view {
namespace {

using schedule::Timeline;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TextGrid, DrawsAHandMadeTimeline) {
  EXPECT_EQ(to_text_grid(samples::by_hand()),
            "rank 0  0F0  .   .   .   .   .   .   .   .   .  0B0----\n"
            "rank 1   .  1F0  .   .   .   .   .   .  1B0----  .   .\n"
            "rank 2   .   .  2F0  .   .   .  2B0----  .   .   .   .\n"
            "rank 3   .   .   .  3F0 3B0----  .   .   .   .   .   .\n"
            "idle 75.0 % of 4 x 12 slots (300.0 % of the ideal time) · peak activations 1 1 1 1\n");
}

TEST(TextGrid, MatchesTheGoldenFiles) {
  samples::expect_golden("1f1b_4x8.txt", to_text_grid(samples::unit("1f1b", 4, 8)));
  samples::expect_golden("1f1b_4x8_folded.txt",
                         to_text_grid(samples::unit("1f1b", 4, 8), {.fold = 80}));
  samples::expect_golden("gpipe_2x4_skips.txt", to_text_grid(samples::gpipe_with_skips()));
}

TEST(TextGrid, FoldsRowsAtWholeSlots) {
  const Timeline timeline = samples::unit("1f1b", 4, 8);
  const std::string whole = to_text_grid(timeline);
  EXPECT_EQ(to_text_grid(timeline, {.fold = 160}), whole) << "it fits";
  std::vector<std::string> joined(4);
  std::vector<std::string> lines = split(to_text_grid(timeline, {.fold = 60}), '\n');
  EXPECT_EQ(lines.front(), "slots 0 to 12");
  for (std::string& line : lines) {
    EXPECT_LE(line.size(), 62u) << "with the two bytes of a dot: " << line;
    if (!line.starts_with("rank ")) continue;
    line.resize(8 + 13 * 4, ' ');  // blanks at the ends of rows are not printed
    joined[static_cast<std::size_t>(line[5] - '0')] += line.substr(8);
  }
  for (std::size_t rank = 0; rank < joined.size(); ++rank)
    EXPECT_EQ("rank " + text(rank) + "  " +
                  joined[rank].substr(0, joined[rank].find_last_not_of(' ') + 1),
              split(whole, '\n')[rank]);
  for (const std::string& line :
       split(to_text_grid(samples::measured(samples::unet()), {.fold = 70}), '\n'))
    EXPECT_LE(line.starts_with("rank ") ? line.size() : 0, 70u) << line;
}

// An action may go past the end of a block, where a cell's last column is no blank.
TEST(TextGrid, FoldedRowsFitIntoTheColumns) {
  const auto widest = [](const char* schedule, int stages, int micro_batches, int columns) {
    int most = 0;
    for (const std::string& line : split(
             to_text_grid(samples::unit(schedule, stages, micro_batches), {.fold = columns}), '\n'))
      most = std::max(most, columns_of(line));
    return most;
  };
  EXPECT_LE(widest("1f1b", 12, 20, 80), 80);
  EXPECT_LE(widest("gpipe", 20, 40, 80), 80);
  EXPECT_LE(widest("gpipe", 30, 40, 80), 80) << "the peaks of 30 ranks";
  for (int columns = 40; columns < 80; ++columns)
    EXPECT_LE(widest("1f1b", 12, 20, columns), columns);
}

TEST(TextGrid, ShowsNormsAndSteps) {
  simulate::Costs costs = simulate::unit_costs(2);
  for (auto& stage : costs.stages) stage.norm = stage.step = 1;
  const Timeline timeline =
      simulate::simulate(schedule::add_optimizer_steps(schedule::lower(
                             schedule::generate("gpipe", {.stages = 2, .micro_batches = 1}), {})),
                         costs);
  EXPECT_THAT(to_text_grid(timeline), HasSubstr("rank 0  0F0  .   .   .  0B0---- NRM STP\n"
                                                "rank 1   .  1F0 1B0---- NRM  .   .  STP\n"));
  const std::string svg = to_svg({timeline});
  EXPECT_THAT(svg, HasSubstr("norm"));
  EXPECT_THAT(svg, HasSubstr("step"));
  const auto read = from_chrome_trace(to_chrome_trace({timeline}));
  EXPECT_EQ(read.at(0).events.size(), timeline.events.size());
}

TEST(TextGrid, ReportsIdleTimeInBothDefinitions) {
  const std::string line = summary(samples::unit("1f1b", 4, 8));
  EXPECT_EQ(line,
            "idle 27.3 % of 4 x 33 slots (37.5 % of the ideal time) · peak activations 4 3 2 1");
}

TEST(TextGrid, DrawsMeasuredTimesToScale) {
  const std::string grid = to_text_grid(samples::measured(samples::unet()), {.columns = 90});
  const std::vector<std::string> lines = split(trim(grid), '\n');
  ASSERT_EQ(lines.size(), 3u);
  for (int rank = 0; rank < 2; ++rank) EXPECT_LE(lines[rank].size(), 90u);
  EXPECT_THAT(lines[0], HasSubstr("0B3-"));
  EXPECT_THAT(lines[2], HasSubstr("ms ("));
  EXPECT_THAT(lines[2], HasSubstr("peak memory"));
}

TEST(TextGrid, ShortensLabelsThatDoNotFit) {
  for (int columns : {1, 20, 40, 79, 80, 131}) {
    const std::string grid = to_text_grid(samples::unit("1f1b", 8, 32), {.columns = columns});
    const std::vector<std::string> lines = split(grid, '\n');
    for (int rank = 0; rank < 8; ++rank) {
      EXPECT_LE(lines[rank].size(), static_cast<std::size_t>(std::max(columns, 16)));
    }
  }
}

TEST(TextGrid, DrawsTwelveRanksInLineAndWideNumbers) {
  const std::string grid = to_text_grid(samples::unit("gpipe", 12, 11));
  const std::vector<std::string> lines = split(grid, '\n');
  EXPECT_THAT(lines[0], HasSubstr("rank 0   0F0 "));
  EXPECT_THAT(lines[11], HasSubstr("rank 11 "));
  EXPECT_THAT(lines[11], HasSubstr("11F10 11B10-"));
}

TEST(TextGrid, HidesEventsWithoutDuration) {
  const std::string grid = to_text_grid(samples::gpipe_with_skips());
  EXPECT_THAT(grid, Not(HasSubstr("SEND")));
  EXPECT_THAT(grid, HasSubstr("0R2"));
}

TEST(TextGrid, ShortensThePeaksOfManyRanks) {
  const std::string line = summary(samples::unit("gpipe", 100, 100));
  EXPECT_THAT(line, HasSubstr("peak activations 100 100 100 ... 100 (of 100 ranks)"));
  EXPECT_LT(line.size(), 200u);
}

TEST(TextGrid, FormatsAnEmptyTimelineAsOneLine) {
  EXPECT_EQ(split(trim(to_text_grid({})), '\n').size(), 1u);
}

TEST(TextGrid, RejectsTooManyCells) {
  Timeline large = samples::by_hand();
  large.events.resize(most_cells + 1, large.events[0]);
  try {
    to_text_grid(large);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("a picture of 100001 cells is too large"));
    EXPECT_THAT(error.what(), HasSubstr("draw fewer stages or micro-batches"));
  }
  EXPECT_THAT(summary(large), HasSubstr("idle"));  // the summary has no size limit
  EXPECT_THROW(to_svg({large}), UsageError);
  EXPECT_THROW(to_svg({large, samples::by_hand()}), UsageError);
  Timeline huge = samples::by_hand();
  huge.events.resize(most_trace_events + 1, huge.events[0]);
  EXPECT_THROW(to_chrome_trace({huge}), UsageError);
  large.events.pop_back();
  EXPECT_EQ(cell_count({large}), most_cells);
  EXPECT_NO_THROW(to_text_grid(large));
}

}  // namespace
}  // namespace trestle::view
