#pragma once

#include <string>
#include <vector>

// Line charts of a run's metrics: loss over epochs, dice over epochs.
//
//   std::string file = to_svg_curves(
//       {{.chart = "loss", .name = "training", .x = epochs, .y = training},
//        {.chart = "loss", .name = "validation", .x = epochs, .y = validation},
//        {.chart = "dice", .name = "validation", .x = epochs, .y = dice, .mark = Mark::Highest}},
//       {.title = "unet_quick", .x_label = "epoch"});
namespace trestle::view {

// A point of a line that deserves a dot and its value.
enum class Mark { None, Highest, Lowest };

struct Series {
  std::string chart;  // what is on the y axis; series of one chart share it
  std::string name;   // stands at the line's end
  std::vector<double> x;
  std::vector<double> y;  // as many as x; values that are not finite leave a gap in the line
  Mark mark = Mark::None;
};

struct CurveOptions {
  std::string title = {};
  std::string x_label = "epoch";
  double width = 820;         // pixels
  double chart_height = 210;  // pixels, for each chart
};

// One chart for each name in `chart`, stacked in the order of first appearance over one x axis: two
// quantities get two charts, never two y axes. Throws UsageError where x and y differ in length.
std::string to_svg_curves(const std::vector<Series>& series, const CurveOptions& options = {});

}  // namespace trestle::view
