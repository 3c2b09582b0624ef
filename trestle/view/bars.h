#pragma once

#include <optional>
#include <string>
#include <vector>

// Measured amounts as bars, with what a formula says as a tick across each: one row for each thing that is compared, one
// panel for each quantity.
//
//   std::string file = to_svg_bars({.title = "two levels",
//                                   .rows = {{"DDP"}, {"FSDP"}},
//                                   .panels = {{.title = "memory", .bars = {{.value = 16, .label = "16", .mark = 16.0},
//                                                                           {.value = 4, .label = "4"}}}}});
namespace trestle::view {

struct Bar {
  double value = 0;
  std::string label = {};  // behind the bar
  double more = 0;         // drawn lighter behind `value`: a peak above what is always held
  std::optional<double> mark = {};  // the formula's
};

struct BarPanel {
  std::string title = {};
  std::vector<Bar> bars = {};  // one for each row; all share one scale
};

struct BarsPicture {
  struct Row {
    std::string name;
    std::string note = {};  // small, below the name
  };
  std::string title = {}, subtitle = {};
  std::vector<Row> rows = {};
  std::vector<BarPanel> panels = {};
  std::vector<std::string> legend =
      {};  // of a bar, of what is more, and of the tick; "" leaves one out
};

// Throws UsageError where a panel has another number of bars than there are rows.
std::string to_svg_bars(const BarsPicture& picture);

}  // namespace trestle::view
