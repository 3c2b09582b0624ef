#include "trestle/view/svg.h"

#include <cmath>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/view/labels.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_legend.h"
#include "trestle/view/svg_parts.h"

namespace trestle::view {
namespace {

using parts::Axis;
using parts::Panel;
using schedule::Event;
using schedule::Timeline;

constexpr double title_height = 36;
constexpr double panel_header = 48;
constexpr double panel_gap = 18;
constexpr double axis_height = 34;

// Wide enough for a two-digit number in a short cell (the tenth percentile of lengths).
double plot_width(const std::vector<Timeline>& panels, double seconds, double asked) {
  const double columns = 2 * parts::margin + parts::name_column + parts::fact_column;
  if (asked > 0) return std::max(asked - columns, 100.0);
  std::vector<double> lengths;
  for (const Timeline& timeline : panels) {
    for (const Event& event : timeline.events) {
      if (takes_rank(event) && event.action.micro_batch >= 0 &&
          std::isfinite(event.end - event.begin)) {
        lengths.push_back(event.end - event.begin);
      }
    }
  }
  double width = 0;
  if (!lengths.empty()) {
    const auto tenth = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 10);
    std::nth_element(lengths.begin(), tenth, lengths.end());
    width = seconds / *tenth * 15.5;
  }
  return std::clamp(width, 900 - columns, 2400 - columns);
}

std::string panel_facts(const Timeline& timeline, TimeUnit unit) {
  const double length = span(timeline).length();
  std::string facts =
      text("idle ", percent(schedule::idle_share_of_makespan(timeline)), " of the makespan  ·  ",
           percent(schedule::idle_share_of_ideal(timeline)), " of the ideal time  ·  ",
           duration_text(length, unit), " per step");
  if (timeline.tensor_messages.empty()) return facts;
  schedule::TensorTimes most;
  for (int rank = 0; rank < timeline.rank_count; ++rank) {
    const schedule::TensorTimes times = schedule::tensor_times(timeline, rank);
    if (times.exposed >= most.exposed) most = times;
  }
  const auto share = [&](double seconds) { return length > 0 ? percent(seconds / length) : "0 %"; };
  return text(facts, "  ·  messages of tensor ranks: ", share(most.exposed), " exposed, ",
              share(most.hidden), " hidden");
}

void draw_panel(SvgWriter& svg, const Axis& axis, const Panel& panel, std::string_view title,
                const SvgOptions& options) {
  svg.open("g", {{"class", "panel"}});
  const double facts_y = panel.top - 17;
  double x = parts::margin;
  if (!title.empty()) {
    svg.text(x, facts_y, title,
             {{"font-size", 13.5}, {"font-weight", 600}, {"fill", palette::ink_colour}});
    constexpr double bold = 1.12;  // its width compared with that of text_width()
    x += bold * text_width(title, 13.5) + 18;
  }
  svg.text(x, facts_y, panel_facts(*panel.timeline, axis.unit),
           {{"class", "facts"}, {"font-size", 12}, {"fill", palette::quiet_colour}});
  parts::draw_rows(svg, axis, panel);
  parts::draw_tensor_messages(svg, axis, panel);
  if (panel.has_memory) parts::draw_memory(svg, axis, panel);
  parts::draw_hosts(svg, axis, panel);
  if (options.skips == SkipArrows::Show) parts::draw_skips(svg, axis, panel);
  parts::draw_labels(svg, axis, panel);  // above the arrows, which may cross a row
  const double end = axis.x(panel.span.length());
  svg.element(
      "path",
      {{"class", "end"},
       {"d", Path().move(end, panel.top - 5).line(end, panel.top + panel.height() + 3).text()},
       {"stroke", palette::ink_colour},
       {"stroke-width", 1.2}});
  svg.close();
}

// Light lines through all panels, behind their content, and the numbers below the last panel.
void draw_axis(SvgWriter& svg, const Axis& axis, double top, double bottom) {
  svg.open("g", {{"class", "axis"},
                 {"font-size", 11},
                 {"fill", palette::quiet_colour},
                 {"text-anchor", "middle"}});
  const double right = axis.left + axis.width;
  for (const Tick& tick : ticks(axis.seconds, axis.unit, static_cast<int>(axis.width / 70))) {
    const double x = axis.x(tick.at);
    svg.element("path", {{"d", Path().move(x, top).line(x, bottom + 5).text()},
                         {"stroke", palette::grid_line_colour}});
    svg.text(x, bottom + 19, tick.label);
  }
  svg.element("path", {{"d", Path().move(axis.left, bottom).line(right, bottom).text()},
                       {"stroke", palette::axis_colour}});
  svg.text(right + 22, bottom + 19, axis_unit(axis.seconds, axis.unit), {{"text-anchor", "start"}});
  svg.close();
}

// Stacks the panels and gives all memory charts of one kind the same scale.
std::vector<Panel> place(const std::vector<Timeline>& timelines, const SvgOptions& options,
                         double top) {
  std::vector<Panel> panels;
  double scale[2] = {0, 0};
  for (const Timeline& timeline : timelines) {
    Panel panel{.timeline = &timeline, .span = span(timeline), .top = top + panel_header};
    panel.has_memory = options.memory == MemoryCharts::Show;
    panel.rank_pitch = parts::row_height + parts::rank_gap +
                       (panel.has_memory ? parts::memory_gap + parts::memory_height : 0);
    panel.memory = parts::memory_curves(timeline);
    if (!timeline.crossings.empty()) panel.hosts = schedule::hosts_of(timeline);
    for (const parts::MemoryCurve& curve : panel.memory) {
      double& largest = scale[static_cast<int>(parts::memory_kind(timeline))];
      largest = std::max(largest, curve.peak);
    }
    top = panel.top + panel.height() + panel_gap;
    panels.push_back(std::move(panel));
  }
  for (Panel& panel : panels) {
    const double largest = scale[static_cast<int>(parts::memory_kind(*panel.timeline))];
    panel.memory_scale = largest > 0 ? largest : 1;
  }
  return panels;
}

}  // namespace

std::string to_svg(const std::vector<Timeline>& timelines, const SvgOptions& options) {
  check_size(timelines);
  double seconds = 0;
  for (const Timeline& timeline : timelines) {
    seconds = std::max(seconds, span(timeline).length());
  }
  const bool has_length = seconds > 0 && std::isfinite(seconds);
  Axis axis{.left = parts::margin + parts::name_column,
            .seconds = has_length ? seconds : 1,
            .unit = resolve(options.unit, timelines)};
  axis.width = plot_width(timelines, axis.seconds, options.width);
  const bool own_title = !options.title.empty();
  const std::string title = own_title           ? options.title
                            : timelines.empty() ? "empty schedule"
                                                : timelines.front().title;

  const double width = axis.left + axis.width + parts::fact_column + parts::margin;
  const double legend_top = parts::margin + title_height;
  const parts::Legend legend(timelines, options, width - 2 * parts::margin);
  const std::vector<Panel> panels = place(timelines, options, legend_top + legend.height());
  const double rows_top = panels.empty() ? legend_top : panels.front().top;
  const double bottom =
      panels.empty() ? rows_top + 20 : panels.back().top + panels.back().height() + 8;
  SvgWriter svg({.width = width, .height = bottom + axis_height, .title = title});
  parts::define_patterns(svg);
  svg.text(
      parts::margin, parts::margin + 12, title,
      {{"class", "title"}, {"font-size", 18}, {"font-weight", 600}, {"fill", palette::ink_colour}});
  legend.draw(svg, legend_top);
  draw_axis(svg, axis, rows_top - 5, bottom);
  for (const Panel& panel : panels) {
    const bool repeats_title = panel.timeline->title == title;
    draw_panel(svg, axis, panel, repeats_title ? "" : panel.timeline->title, options);
  }
  return std::move(svg).finish();
}

}  // namespace trestle::view
