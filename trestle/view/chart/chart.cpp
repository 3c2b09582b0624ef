#include "trestle/view/chart/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/view/chart/pen.h"
#include "trestle/view/chart_labels.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_writer.h"
#include "trestle/view/time_axis.h"

namespace trestle::view {

namespace {

using Align = WordStyle::Align;

constexpr double width = 820, margin = 28;
constexpr double head = 96;  // title, subtitle and the legend's line
constexpr double curve_height = 270;
constexpr double bar_pitch = 52, bar_height = 26;
constexpr double tick_size = 11, word_size = 12;

struct Scale {
  double low = 0, high = 1;
  double from = 0, to = 1;  // in pixels
  double operator()(double value) const {
    return from + (value - low) / (high - low) * (to - from);
  }
};

std::string axis_number(double value) {
  const double size = std::abs(value);
  if (size > 0 && size < 1e-3) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.2g", value);
    return buffer;
  }
  return decimal(value, size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 ? 2 : 4);
}

// The axis begins at 0 if that is close, so that curves do not look steeper than they are.
std::vector<Tick> ticks_of(const Chart& chart, bool from_zero) {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const ChartSeries& series : chart.series)
    for (const ChartPoint& point : series.points) {
      if (point.predicted) {
        low = std::min(low, *point.predicted);
        high = std::max(high, *point.predicted);
      }
      if (!std::isfinite(point.value)) continue;
      low = std::min({low, point.low, point.value});
      high = std::max({high, point.high, point.value});
    }
  if (!(high > 0) || !std::isfinite(high)) return round_ticks(0, 1, 6);
  if (from_zero || low < 0.6 * high) low = 0;
  if (!(high > low)) low = 0.9 * high;
  const Range range = widen_to_ticks({.low = low, .high = high}, 7);
  return round_ticks(range.low, range.high, 9);
}

void check_curves(const Chart& chart) {
  for (const ChartSeries& series : chart.series)
    if (series.points.size() != chart.labels.size())
      throw UsageError(text("the series '", series.name, "' has ", series.points.size(),
                            " points, the chart ", chart.labels.size(), " labels"));
  if (chart.kind == Chart::Kind::Bars && chart.series.size() != 1)
    throw UsageError(text("a chart of bars has one series, not ", chart.series.size()));
}

bool any_prediction(const Chart& chart) {
  for (const ChartSeries& series : chart.series)
    for (const ChartPoint& point : series.points)
      if (point.predicted) return true;
  return false;
}

class Drawing {
 public:
  Drawing(const Chart& chart, Pen& pen) : chart_(chart), pen_(pen) {}

  static double height(const Chart& chart) {
    return chart.kind == Chart::Kind::Curves
               ? head + curve_height + 68
               : head + bar_pitch * static_cast<double>(chart.labels.size()) + 62;
  }

  void draw() {
    pen_.words({margin, margin + 14}, chart_.title, {.size = 18, .strong = true});
    pen_.words({margin, margin + 34}, chart_.subtitle,
               {.size = word_size, .colour = palette::quiet_colour});
    legend();
    chart_.kind == Chart::Kind::Curves ? curves() : bars();
  }

 private:
  void legend() {
    if (!any_prediction(chart_)) return;
    const double y = margin + 34;
    double x = width - margin - 190;
    pen_.line({{x, y - 4}, {x + 24, y - 4}}, palette::line_colour(0), 2, Stroke::Solid);
    pen_.words({x + 30, y}, "measured", {.size = word_size, .colour = palette::quiet_colour});
    x += 100;
    pen_.line({{x, y - 4}, {x + 24, y - 4}}, palette::line_colour(0), 1.6, Stroke::Dashed);
    pen_.words({x + 30, y}, "predicted", {.size = word_size, .colour = palette::quiet_colour});
  }

  void curves() {
    const std::vector<Tick> ticks = ticks_of(chart_, false);
    double name_width = 40;
    for (const ChartSeries& series : chart_.series)
      name_width = std::max(name_width, text_width(series.name, word_size));
    const double left = 84, right = width - margin - std::min(name_width, 260.0);
    const double bottom = head + curve_height;
    const Scale y{ticks.front().at, ticks.back().at, bottom, head};
    pen_.words({margin, head - 12}, chart_.y_label,
               {.size = word_size, .colour = palette::quiet_colour});
    for (const Tick& tick : ticks) {
      pen_.line({{left, y(tick.at)}, {right, y(tick.at)}}, palette::grid_line_colour, 1,
                Stroke::Solid);
      tick_label(y_tick_label(left, y(tick.at)), tick.label, Align::Right);
    }
    pen_.line({{left, bottom}, {right, bottom}}, palette::axis_colour, 1, Stroke::Solid);
    const double count = static_cast<double>(chart_.labels.size());
    const auto x = [&](std::size_t i) {
      return left + (right - left) * (static_cast<double>(i) + 0.5) / count;
    };
    for (std::size_t i = 0; i < chart_.labels.size(); ++i)
      tick_label(x_tick_label(x(i), bottom), chart_.labels[i], Align::Middle);
    x_axis_name((left + right) / 2, bottom, chart_.x_label);
    for (std::size_t s = 0; s < chart_.series.size(); ++s) curve(chart_.series[s], s, x, y);
    names(y, right);
  }

  void tick_label(const LabelPlace& place, std::string_view label, Align align) {
    pen_.words({place.x, place.y}, label,
               {.size = tick_size, .align = align, .colour = palette::quiet_colour});
  }

  void x_axis_name(double middle, double axis, std::string_view name) {
    pen_.words({middle, axis + 40}, name,
               {.size = word_size, .align = Align::Middle, .colour = palette::quiet_colour});
  }

  template <class X>
  void curve(const ChartSeries& series, std::size_t number_of, X x, const Scale& y) {
    const std::string_view colour = palette::line_colour(number_of);
    const std::string lighter = palette::lighter(colour, 0.25);
    std::vector<Spot> measured, predicted;
    const auto flush = [&] {
      if (measured.size() > 1) pen_.line(measured, colour, 2, Stroke::Solid);
      measured.clear();
    };
    for (std::size_t i = 0; i < series.points.size(); ++i)
      if (series.points[i].predicted) predicted.push_back({x(i), y(*series.points[i].predicted)});
    if (predicted.size() > 1) pen_.line(predicted, lighter, 1.6, Stroke::Dashed);
    for (const Spot& at : predicted) pen_.dot(at, 2, lighter);
    for (std::size_t i = 0; i < series.points.size(); ++i) {
      const ChartPoint& point = series.points[i];
      if (!std::isfinite(point.value)) {
        flush();
        continue;
      }
      measured.push_back({x(i), y(point.value)});
      error_bar({x(i), y(point.low)}, {x(i), y(point.high)}, colour);
      pen_.dot(measured.back(), 3, colour);
    }
    flush();
    if (const ChartPoint* best = lowest(series)) {
      const double at = x(static_cast<std::size_t>(best - series.points.data()));
      const double below = y(best->low) + 18;
      pen_.words({at, below < y.from - 4 ? below : y(best->high) - 9}, axis_number(best->value),
                 {.size = tick_size, .align = Align::Middle, .strong = true});
    }
  }

  static const ChartPoint* lowest(const ChartSeries& series) {
    const ChartPoint* best = nullptr;
    for (const ChartPoint& point : series.points)
      if (std::isfinite(point.value) && (best == nullptr || point.value < best->value))
        best = &point;
    return best;
  }

  void error_bar(Spot low, Spot high, std::string_view colour) {
    if (std::abs(low.y - high.y) + std::abs(low.x - high.x) < 1) return;
    const bool upright = low.x == high.x;
    const double dx = upright ? 4 : 0, dy = upright ? 0 : 4;
    pen_.line({low, high}, colour, 1.2, Stroke::Solid);
    for (const Spot& end : {low, high})
      pen_.line({{end.x - dx, end.y - dy}, {end.x + dx, end.y + dy}}, colour, 1.2, Stroke::Solid);
  }

  // The names at the ends of the lines, moved apart where they would overlap.
  void names(const Scale& y, double right) {
    struct Name {
      double y;
      std::size_t series;
    };
    std::vector<Name> names;
    for (std::size_t s = 0; s < chart_.series.size(); ++s) {
      const auto& points = chart_.series[s].points;
      const auto last = std::find_if(points.rbegin(), points.rend(), [](const ChartPoint& point) {
        return std::isfinite(point.value);
      });
      if (last != points.rend()) names.push_back({y(last->value), s});
    }
    move_apart(names, head, std::numeric_limits<double>::infinity());
    for (const Name& name : names) {
      const LabelPlace place = line_name(right, name.y);
      pen_.words({place.x, place.y}, chart_.series[name.series].name,
                 {.size = word_size, .colour = palette::line_colour(name.series)});
    }
  }

  void bars() {
    const std::vector<Tick> ticks = ticks_of(chart_, true);
    double label_width = 60;
    for (const std::string& label : chart_.labels)
      label_width = std::max(label_width, text_width(label, word_size));
    const double left = margin + std::min(label_width, 330.0) + 12, right = width - margin - 70;
    const double bottom = head + bar_pitch * static_cast<double>(chart_.labels.size());
    const Scale x{ticks.front().at, ticks.back().at, left, right};
    for (const Tick& tick : ticks) {
      pen_.line({{x(tick.at), head}, {x(tick.at), bottom}}, palette::grid_line_colour, 1,
                Stroke::Solid);
      tick_label(x_tick_label(x(tick.at), bottom), tick.label, Align::Middle);
    }
    x_axis_name((left + right) / 2, bottom, chart_.y_label);
    for (std::size_t i = 0; i < chart_.labels.size(); ++i)
      bar(chart_.labels[i], chart_.series[0].points[i],
          head + bar_pitch * (static_cast<double>(i) + 0.5), x);
  }

  void bar(const std::string& label, const ChartPoint& point, double middle, const Scale& x) {
    pen_.words({x.from - 12, middle + 4}, label, {.size = word_size, .align = Align::Right});
    const double top = middle - bar_height / 2;
    if (!std::isfinite(point.value)) {
      pen_.words({x.from + 8, middle + 4}, "not measured",
                 {.size = tick_size, .colour = palette::quiet_colour});
      return;
    }
    pen_.box({x.from, top}, x(point.value) - x.from, bar_height, palette::forward_colour);
    error_bar({x(point.low), middle}, {x(point.high), middle}, palette::ink_colour);
    if (point.predicted)
      pen_.line({{x(*point.predicted), top - 5}, {x(*point.predicted), top + bar_height + 5}},
                palette::line_colour(0), 1.6, Stroke::Dashed);
    const double end = std::max({point.value, point.high, point.predicted.value_or(0)});
    pen_.words({x(end) + 10, middle + 4}, axis_number(point.value),
               {.size = word_size, .strong = true});
  }

  const Chart& chart_;
  Pen& pen_;
};

}  // namespace

std::string to_svg(const Chart& chart) {
  check_curves(chart);
  SvgPen pen(width, Drawing::height(chart), chart.title);
  Drawing(chart, pen).draw();
  return std::move(pen).finish();
}

data::Image to_pixels(const Chart& chart) {
  check_curves(chart);
  PixelPen pen(width, Drawing::height(chart));
  Drawing(chart, pen).draw();
  return pen.image();
}

}  // namespace trestle::view
