#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "trestle/base/text.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_writer.h"

// Predicted against known times.
namespace trestle::plan {

struct ComparedPoint {
  double known = 0;      // seconds
  double predicted = 0;  // seconds
  std::string name = {};
};

struct ComparedPanel {
  std::string title, subtitle;
  double least = 0.01, most = 100;  // known seconds; powers of ten
  double spread = 0;                // the share of the band around 0
  double radius = 3;                // pixels of a point
  std::vector<ComparedPoint> points = {};
};

// One panel after the other. The y axis is the error of the prediction, in percent.
inline std::string to_svg_comparison(const std::string& title,
                                     const std::vector<ComparedPanel>& panels) {
  using namespace view;
  constexpr double side = 340, height = 240, left = 64, top = 90, gap = 56, largest = 40;
  const double width = left + static_cast<double>(panels.size()) * (side + gap);
  SvgWriter svg({.width = width, .height = top + height + 56, .title = title});
  svg.open("g", {{"font-family", palette::font_family}, {"fill", palette::ink_colour}});
  const auto quiet = [&](double x, double y, const std::string& words, const char* anchor) {
    svg.text(x, y, words,
             {{"font-size", 11}, {"text-anchor", anchor}, {"fill", palette::quiet_colour}});
  };
  svg.text(left, 28, title, {{"font-size", 16}, {"font-weight", "600"}});
  for (std::size_t i = 0; i < panels.size(); ++i) {
    const ComparedPanel& panel = panels[i];
    const double x0 = left + static_cast<double>(i) * (side + gap), middle = top + height / 2;
    const auto x_of = [&](double seconds) {
      return x0 + side * std::log10(seconds / panel.least) / std::log10(panel.most / panel.least);
    };
    const auto y_of = [&](double percent) {
      return middle - height / 2 * std::clamp(percent / largest, -1.0, 1.0);
    };
    svg.text(x0, 54, panel.title, {{"font-size", 13}, {"font-weight", "600"}});
    quiet(x0, 72, panel.subtitle, "start");
    const double band = y_of(-100 * panel.spread) - y_of(100 * panel.spread);
    svg.element("rect", {{"x", x0},
                         {"y", y_of(100 * panel.spread)},
                         {"width", side},
                         {"height", band},
                         {"fill", palette::memory_colour},
                         {"fill-opacity", "0.5"}});
    const auto line = [&](double x1, double y1, double x2, double y2, std::string_view colour) {
      svg.element("line", {{"x1", x1}, {"y1", y1}, {"x2", x2}, {"y2", y2}, {"stroke", colour}});
    };
    for (double tick = panel.least; tick <= panel.most * 1.01; tick *= 10) {
      line(x_of(tick), top, x_of(tick), top + height, palette::grid_line_colour);
      quiet(x_of(tick), top + height + 16,
            tick < 1 ? text(std::lround(tick * 1000), " ms") : text(std::lround(tick), " s"),
            "middle");
    }
    for (int tick = -40; tick <= 40; tick += 20) {
      line(x0, y_of(tick), x0 + side, y_of(tick),
           tick == 0 ? palette::axis_colour : palette::grid_line_colour);
      if (i == 0) quiet(x0 - 6, y_of(tick) + 4, text(tick > 0 ? "+" : "", tick, " %"), "end");
    }
    quiet(x0 + side / 2, top + height + 36, "known duration of a step", "middle");
    for (const ComparedPoint& point : panel.points) {
      svg.open("circle", {{"cx", x_of(point.known)},
                          {"cy", y_of(100 * (point.predicted / point.known - 1))},
                          {"r", panel.radius},
                          {"fill", palette::skip_colour},
                          {"fill-opacity", "0.5"}});
      if (!point.name.empty()) svg.element("title", {}, point.name);
      svg.close();
    }
  }
  svg.close();
  return std::move(svg).finish();
}

}  // namespace trestle::plan
