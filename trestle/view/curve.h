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

// The point of a line that gets a ring and its value as a label.
enum class Mark { None, Highest, Lowest };

struct Series {
  std::string chart;  // the quantity on the y axis; equal names share a chart
  std::string name;   // the label at the line's end
  std::vector<double> x;
  std::vector<double> y;  // of the size of x; a value that is not finite leaves a gap
  Mark mark = Mark::None;
};

struct CurveOptions {
  std::string title = {};
  std::string x_label = "epoch";
  double width = 820;         // pixels
  double chart_height = 210;  // pixels, for each chart
};

// Draws one chart for each name in `chart`, stacked in the order of first appearance over one x
// axis. A chart has one y axis only. Throws UsageError where x and y differ in size.
std::string to_svg_curves(const std::vector<Series>& series, const CurveOptions& options = {});

}  // namespace trestle::view
