#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trestle/data/files/image.h"

// Measurements with their spread beside what was predicted: as curves, or as bars.
namespace trestle::train {

// One measurement; `value` is NaN where there is none.
struct ChartPoint {
  double value = 0;
  double low = 0, high = 0;              // an error bar where they differ
  std::optional<double> predicted = {};  // drawn lighter and dashed beside it
};

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;  // one for each label of the chart
};

struct Chart {
  enum class Kind {
    Curves,  // the labels stand under the x axis, evenly spaced; a line for each series
    Bars,    // the labels stand beside lying bars, which begin at 0; one series
  };
  Kind kind = Kind::Curves;
  std::string title = {};
  std::string subtitle = {};
  std::string x_label = {};  // what the labels are values of; curves only
  std::string y_label = {};  // what is measured, with its unit
  std::vector<std::string> labels = {};
  std::vector<ChartSeries> series = {};
};

// The same picture as a file and as pixels (twice as many). Throws UsageError where a series has
// another number of points than the chart has labels, and for bars of several series.
std::string to_svg(const Chart& chart);
data::Image to_pixels(const Chart& chart);

}  // namespace trestle::train
