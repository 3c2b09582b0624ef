// docs/schedules.md: the table and the pictures of every schedule. TRESTLE_UPDATE_DOCS=1 in the
// environment writes them again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <map>
#include <sstream>
#include <string>

#include "tests/schedule/tables.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/schedule/lower.h"
#include "trestle/schedule/timeline.h"
#include "trestle/simulate/simulate.h"
#include "trestle/view/svg.h"

namespace trestle::view {
namespace {

constexpr int ranks = 4, micro_batches = 8;

const std::string document = std::string(TRESTLE_SOURCE_DIR) + "/docs/schedules.md";

// When each one is the best choice.
const std::map<std::string, std::string> choices = {
    {"1f1b", "the usual choice: half the memory of GPipe here, in the same time"},
    {"gpipe", "the loss needs the whole batch"},
    {"model_parallel", "one micro-batch is all that fits"},
    {"interleaved_1f1b", "links are fast, and a shorter bubble is worth more messages"},
    {"looped_bfs", "the loss needs the whole batch, and a shorter bubble is worth more messages"},
    {"zb_h1", "the memory is that of 1F1B, and its bubble is too long"},
    {"zb_h2", "there is memory for twice the activations of 1F1B"},
    {"interleaved_zero_bubble", "both are worth it: several stages on a rank and split backwards"},
    {"zbv", "F, I and W take about the same time"},
    {"v_half", "memory is short: 3/4 of that of 1F1B here, half of it on many ranks"},
    {"v_min", "memory is shorter still: half of that of 1F1B here, a third of it on many ranks"},
    {"dualpipev",
     "layers exchange messages, as experts do: one half of a pair computes while those of the "
     "other travel"}};

// Each rank's layers take F = I = W = 6 slots for a micro-batch, and keep one unit of memory.
schedule::Timeline simulated(const schedule::ScheduleInfo& info) {
  const schedule::Schedule table = schedule::tables::table_on_ranks(info, ranks, micro_batches, 2);
  const schedule::Schedule lowered = lower(table, {});
  const double slots = 6.0 * ranks / table.stages;
  simulate::Costs costs;
  costs.stages.assign(
      static_cast<std::size_t>(table.stages),
      {.forward = slots, .backward = 2 * slots, .input_grad = slots, .weight_grad = slots});
  costs.routes.assign(lowered.routes.size(), {});
  schedule::Timeline timeline = simulate::simulate(lowered, costs);
  timeline.title = info.name;
  return timeline;
}

std::string rounded(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

std::string row_of(const schedule::ScheduleInfo& info) {
  const schedule::Timeline timeline = simulated(info);
  const auto kept = peak_live_activations(timeline);
  const double chunks = static_cast<double>(timeline.stages) / ranks;
  const double most = *std::max_element(kept.begin(), kept.end()) / chunks;
  return text("| `", info.name, "` | ", chunks, " | ", schedule::makespan(timeline), " | ",
              rounded(100 * schedule::idle_share_of_makespan(timeline), 1), " % | ",
              schedule::span_bubble(timeline), " | ", rounded(most, most == int(most) ? 0 : 1),
              " | ", info.splits_backward ? "yes" : "no", " | ", choices.at(info.name), " |\n");
}

std::string table_of_all() {
  std::string table =
      "| schedule | stages on a rank | step | idle | longest wait | kept | splits the backward | "
      "take it when |\n|---|---|---|---|---|---|---|---|\n";
  for (const auto& info : schedule::known_schedules()) table += row_of(info);
  return table;
}

void expect_file(const std::string& file, const std::string& wanted) {
  if (std::getenv("TRESTLE_UPDATE_DOCS") != nullptr) write_file(file, wanted);
  EXPECT_EQ(read_file(file), wanted) << "Run this test with TRESTLE_UPDATE_DOCS=1.";
}

TEST(ScheduleGallery, TableIsSimulated) {
  const std::string begin = "<!-- schedules:begin -->\n", end = "<!-- schedules:end -->";
  const std::string page = read_file(document);
  const auto from = page.find(begin), to = page.find(end);
  ASSERT_NE(from, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  expect_file(document, page.substr(0, from + begin.size()) + table_of_all() + page.substr(to));
}

TEST(ScheduleGallery, PictureIsSimulated) {
  std::vector<schedule::Timeline> panels;
  for (const auto& info : schedule::known_schedules())
    if (info.name != "model_parallel") panels.push_back(simulated(info));  // three times as long
  expect_file(std::string(TRESTLE_SOURCE_DIR) + "/docs/pictures/schedules.svg",
              to_svg(panels, {.title = text("Every schedule: ", ranks, " ranks, ", micro_batches,
                                            " micro-batches"),
                              .memory = MemoryCharts::Hide}));
}

}  // namespace
}  // namespace trestle::view
