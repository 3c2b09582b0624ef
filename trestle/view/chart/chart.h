#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trestle/data/files/image.h"

// Measurements with error bars beside predicted values, as curves or as bars.
namespace trestle::view {

// One measurement; `value` is NaN if there is none.
struct ChartPoint {
  double value = 0;
  double low = 0, high = 0;              // the ends of an error bar
  std::optional<double> predicted = {};  // drawn lighter and dashed
};

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;  // one for each label of the chart
};

struct Chart {
  enum class Kind {
    Curves,  // labels at even distances under the x axis; a line for each series
    Bars,    // labels beside horizontal bars from 0; one series
  };
  Kind kind = Kind::Curves;
  std::string title = {};
  std::string subtitle = {};
  std::string x_label = {};  // the quantity of the labels; curves only
  std::string y_label = {};  // the measured quantity with its unit
  std::vector<std::string> labels = {};
  std::vector<ChartSeries> series = {};
};

// The chart as a file and as an image of twice as many pixels. Throws UsageError where a series has
// another number of points than the chart has labels, and for bars of several series.
std::string to_svg(const Chart& chart);
data::Image to_pixels(const Chart& chart);

}  // namespace trestle::view
