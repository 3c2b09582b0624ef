#pragma once

#include <optional>
#include <string>
#include <vector>

// Bar charts of measured amounts. A tick across a bar marks the value of a formula. Each row is a
// thing to compare, and each panel a quantity.
//
//   std::string file =
//       to_svg_bars({.title = "two levels",
//                    .rows = {{"DDP"}, {"FSDP"}},
//                    .panels = {{.title = "memory",
//                                .bars = {{.value = 16, .label = "16", .mark = 16.0},
//                                         {.value = 4, .label = "4"}}}}});
namespace trestle::view {

struct Bar {
  double value = 0;
  std::string label = {};           // right of the bar
  double more = 0;                  // drawn lighter after `value`, for example a temporary peak
  std::optional<double> mark = {};  // the value of the formula
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
  std::vector<std::string> legend = {};  // of the bar, of `more` and of the mark; "" leaves one out
};

// Throws UsageError where a panel has a different number of bars than there are rows.
std::string to_svg_bars(const BarsPicture& picture);

}  // namespace trestle::view
