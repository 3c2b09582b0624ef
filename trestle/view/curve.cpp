#include "trestle/view/curve.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/view/chart_labels.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_writer.h"
#include "trestle/view/time_axis.h"

namespace trestle::view {
namespace {

constexpr double curve_margin = 28;
constexpr double left = 84;           // room for the numbers of the y axis
constexpr double right_margin = 150;  // room for the labels at the lines' ends
constexpr int most_ticks = 6;         // on a y axis
constexpr double chart_gap = 44;      // between two charts, for the lower chart's name

struct Line {
  const Series* series = nullptr;
  std::string_view colour;
};

struct Chart {
  std::string name;
  std::vector<Line> lines;
  Range y;
  double top = 0;
};

bool finite(const Series& line, std::size_t i) {
  return std::isfinite(line.x[i]) && std::isfinite(line.y[i]);
}

// The range of the values. A single value gets a range around it.
Range range_of(const std::vector<Line>& lines, std::vector<double> Series::*values) {
  constexpr double unbounded = std::numeric_limits<double>::infinity();
  Range range{.low = unbounded, .high = -unbounded};
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < line.series->x.size(); ++i) {
      if (!finite(*line.series, i)) continue;
      range.low = std::min(range.low, (line.series->*values)[i]);
      range.high = std::max(range.high, (line.series->*values)[i]);
    }
  }
  if (!(range.low <= range.high)) return {};
  if (!(range.high > range.low)) {
    const double around = range.low == 0 ? 1 : std::abs(range.low) * 0.1;
    return {.low = range.low - around, .high = range.high + around};
  }
  return range;
}

// The range of x and the least distance of its ticks. Whole numbers, such as epochs, have no ticks
// between them. A single epoch is centred.
struct XAxis {
  Range range;
  double least_step = 0;
};

XAxis x_axis(const std::vector<Line>& lines) {
  XAxis axis{.range = range_of(lines, &Series::x)};
  double first = axis.range.low;
  bool whole = true, single = true, any = false;
  for (const Line& line : lines)
    for (std::size_t i = 0; i < line.series->x.size(); ++i) {
      if (!finite(*line.series, i)) continue;
      const double x = line.series->x[i];
      if (!any) first = x;
      any = true;
      single = single && x == first;
      whole = whole && x == std::round(x);
    }
  if (any && whole) axis.least_step = 1;
  if (any && whole && single) axis.range = {.low = first - 0.5, .high = first + 0.5};
  return axis;
}

std::vector<Chart> group(const std::vector<Series>& series) {
  std::vector<Chart> charts;
  std::vector<std::string> names;  // a line has the same colour in every chart
  for (const Series& line : series) {
    if (line.x.size() != line.y.size()) {
      throw UsageError(text("the line '", line.name, "' of chart '", line.chart, "' has ",
                            line.x.size(), " x values and ", line.y.size(), " y values"));
    }
    auto chart = std::find_if(charts.begin(), charts.end(),
                              [&](const Chart& c) { return c.name == line.chart; });
    if (chart == charts.end()) {
      charts.push_back({.name = line.chart, .lines = {}, .y = {}});
      chart = std::prev(charts.end());
    }
    const auto name = std::find(names.begin(), names.end(), line.name);
    const auto index = static_cast<std::size_t>(name - names.begin());
    if (name == names.end()) names.push_back(line.name);
    chart->lines.push_back({.series = &line, .colour = palette::line_colour(index)});
  }
  for (Chart& chart : charts)
    chart.y = widen_to_ticks(range_of(chart.lines, &Series::y), most_ticks);
  return charts;
}

std::string value_text(double value) {
  const double size = std::abs(value);
  if (size > 0 && size < 1e-4) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.2e", value);
    return buffer;
  }
  return decimal(value, size >= 100 ? 1 : size >= 0.01 || size == 0 ? 3 : 6);
}

std::optional<std::size_t> marked(const Series& line) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < line.y.size() && line.mark != Mark::None; ++i) {
    if (!finite(line, i)) continue;
    const bool better = !best || (line.mark == Mark::Highest ? line.y[i] > line.y[*best]
                                                             : line.y[i] < line.y[*best]);
    if (better) best = i;
  }
  return best;
}

// Draws one chart. x() and y() map values to pixels.
class ChartDrawing {
 public:
  ChartDrawing(SvgWriter& svg, const Chart& chart, const Range& x, const CurveOptions& options)
      : svg_(svg), chart_(chart), x_(x), options_(options) {}

  void draw() {
    svg_.open("g", {{"class", "chart"}});
    frame();
    for (const Line& each : chart_.lines) line(*each.series, each.colour);
    names();
    svg_.close();
  }

 private:
  double right() const { return options_.width - right_margin; }
  double bottom() const { return chart_.top + options_.chart_height; }
  double x(double value) const { return left + x_.share(value) * (right() - left); }
  double y(double value) const { return bottom() - chart_.y.share(value) * options_.chart_height; }

  void frame() {
    svg_.text(curve_margin, chart_.top - 14, chart_.name,
              {{"font-size", 13}, {"font-weight", 600}, {"fill", palette::ink_colour}});
    svg_.open("g", {{"font-size", 11}, {"fill", palette::quiet_colour}, {"text-anchor", "end"}});
    for (const Tick& tick : round_ticks(chart_.y.low, chart_.y.high, most_ticks + 2)) {
      svg_.element("path", {{"d", Path().move(left, y(tick.at)).line(right(), y(tick.at)).text()},
                            {"stroke", palette::grid_line_colour}});
      const LabelPlace place = y_tick_label(left, y(tick.at));
      svg_.text(place.x, place.y, tick.label);
    }
    svg_.close();
    svg_.element("path", {{"d", Path().move(left, bottom()).line(right(), bottom()).text()},
                          {"stroke", palette::axis_colour}});
  }

  void line(const Series& series, std::string_view stroke) {
    Path path;
    std::size_t drawn = 0;
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (!finite(series, i)) continue;
      const bool joined = i > 0 && finite(series, i - 1);
      joined ? path.line(x(series.x[i]), y(series.y[i]))
             : path.move(x(series.x[i]), y(series.y[i]));
      const bool alone = !joined && (i + 1 == series.x.size() || !finite(series, i + 1));
      if (alone || series.x.size() <= 30) dot(series, i, stroke, 2.4);
      ++drawn;
    }
    if (drawn == 0) return;
    svg_.element("path", {{"class", "line"},
                          {"d", path.text()},
                          {"fill", "none"},
                          {"stroke", stroke},
                          {"stroke-width", 2},
                          {"stroke-linejoin", "round"},
                          {"stroke-linecap", "round"}});
    if (const auto best = marked(series)) mark(series, *best, stroke);
  }

  void dot(const Series& series, std::size_t i, std::string_view fill, double radius) {
    svg_.element("circle",
                 {{"cx", x(series.x[i])}, {"cy", y(series.y[i])}, {"r", radius}, {"fill", fill}});
  }

  // Draws a ring around the point with its value above it, or below it if there is no room above.
  void mark(const Series& series, std::size_t i, std::string_view stroke) {
    const double cx = x(series.x[i]);
    const double cy = y(series.y[i]);
    svg_.element("circle", {{"class", "mark"},
                            {"cx", cx},
                            {"cy", cy},
                            {"r", 4.5},
                            {"fill", palette::background_colour},
                            {"stroke", stroke},
                            {"stroke-width", 2}});
    const bool above = series.mark == Mark::Highest ? cy - chart_.top > 20 : bottom() - cy < 24;
    const std::string label = value_text(series.y[i]);
    svg_.text(std::clamp(cx, left + 24, right() - 24), above ? cy - 11 : cy + 20, label,
              {{"font-size", 11.5},
               {"font-weight", 600},
               {"fill", palette::ink_colour},
               {"text-anchor", "middle"}});
  }

  // Draws the lines' names at their ends, with at least a line height between them.
  void names() {
    struct Name {
      double y;
      std::size_t line;
      double value;
    };
    std::vector<Name> names;
    for (std::size_t i = 0; i < chart_.lines.size(); ++i) {
      const Series& series = *chart_.lines[i].series;
      for (std::size_t k = series.x.size(); k-- > 0;) {
        if (!finite(series, k)) continue;
        names.push_back({.y = y(series.y[k]), .line = i, .value = series.y[k]});
        break;
      }
    }
    if (names.empty()) {
      svg_.text((left + right()) / 2, (chart_.top + bottom()) / 2, "no data yet",
                {{"font-size", 12}, {"fill", palette::quiet_colour}, {"text-anchor", "middle"}});
    }
    move_apart(names, chart_.top, bottom());
    for (const Name& name : names) {
      const LabelPlace place = line_name(right(), name.y);
      svg_.text(place.x, place.y,
                text(chart_.lines[name.line].series->name, " ", value_text(name.value)),
                {{"class", "name"}, {"font-size", 12}, {"fill", chart_.lines[name.line].colour}});
    }
  }

  SvgWriter& svg_;
  const Chart& chart_;
  const Range& x_;
  const CurveOptions& options_;
};

}  // namespace

std::string to_svg_curves(const std::vector<Series>& series, const CurveOptions& options) {
  std::vector<Chart> charts = group(series);
  double bottom = curve_margin + (options.title.empty() ? 0 : 30);
  for (Chart& chart : charts) {
    chart.top = bottom + (&chart == &charts.front() ? 26 : chart_gap);
    bottom = chart.top + options.chart_height;
  }
  std::vector<Line> all;
  for (const Series& line : series) all.push_back({.series = &line, .colour = {}});
  const auto [x, least_step] = x_axis(all);

  SvgWriter svg({.width = options.width, .height = bottom + 52, .title = options.title});
  if (!options.title.empty()) {
    svg.text(curve_margin, curve_margin + 12, options.title,
             {{"font-size", 18}, {"font-weight", 600}, {"fill", palette::ink_colour}});
  }
  for (const Chart& chart : charts) ChartDrawing(svg, chart, x, options).draw();
  const double right = options.width - right_margin;
  svg.open("g", {{"class", "axis"},
                 {"font-size", 11},
                 {"fill", palette::quiet_colour},
                 {"text-anchor", "middle"}});
  for (const Tick& tick : round_ticks(x.low, x.high, 11, least_step)) {
    const LabelPlace place = x_tick_label(left + x.share(tick.at) * (right - left), bottom);
    svg.text(place.x, place.y, tick.label);
  }
  svg.text((left + right) / 2, bottom + 38, options.x_label, {{"font-size", 12}});
  svg.close();
  return std::move(svg).finish();
}

}  // namespace trestle::view
