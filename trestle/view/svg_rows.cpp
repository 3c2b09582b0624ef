#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "trestle/base/text.h"
#include "trestle/view/labels.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_parts.h"

// The rows of a panel: names, cells and idle time.
namespace trestle::view::parts {
namespace {

using schedule::Event;
using schedule::Timeline;

constexpr double smallest_idle = 1.5;  // pixels; narrower gaps are not drawn

std::vector<int> stages_of(const Timeline& timeline, int rank) {
  std::vector<int> stages;
  for (std::size_t s = 0; s < timeline.rank_of_stage.size(); ++s) {
    if (timeline.rank_of_stage[s] == rank) stages.push_back(static_cast<int>(s));
  }
  return stages;
}

// The index of the stage among its rank's stages: 0, 1, ... Later ones are drawn lighter.
int chunk_of(const std::vector<int>& stages, int stage) {
  const auto found = std::find(stages.begin(), stages.end(), stage);
  return found == stages.end() ? 0 : static_cast<int>(found - stages.begin());
}

// The events that each row draws, in order of time.
std::vector<std::vector<const Event*>> events_of_ranks(const Timeline& timeline) {
  std::vector<std::vector<const Event*>> rows(static_cast<std::size_t>(timeline.rank_count));
  for (const Event& event : timeline.events) {
    if (takes_rank(event) && drawable(event, timeline)) rows[event.rank].push_back(&event);
  }
  for (auto& row : rows) {
    std::stable_sort(row.begin(), row.end(),
                     [](const Event* a, const Event* b) { return a->begin < b->begin; });
  }
  return rows;
}

bool is_communication(schedule::Kind kind) {
  return kind == schedule::Kind::Unshard || kind == schedule::Kind::Reshard ||
         kind == schedule::Kind::ReduceGrad;
}

// The compute actions of a rank, to find communication that overlaps them.
class ComputeOfRank {
 public:
  // Call it in order of begin.
  void add(const Event& event) {
    begins_.push_back(event.begin);
    ends_.push_back(ends_.empty() ? event.end : std::max(ends_.back(), event.end));
  }
  bool overlaps(const Event& event) const {
    const auto later = std::lower_bound(begins_.begin(), begins_.end(), event.end);
    return later != begins_.begin() && ends_[later - begins_.begin() - 1] > event.begin;
  }

 private:
  std::vector<double> begins_;
  std::vector<double> ends_;  // running maximum
};

// Communication that overlaps its rank's computation or other communication is drawn as a strip, so
// that both are visible.
std::set<const Event*> strips_of(const std::vector<const Event*>& row) {
  ComputeOfRank compute;
  for (const Event* event : row)
    if (schedule::is_compute(event->action.kind)) compute.add(*event);
  std::set<const Event*> strips;
  double free_from = -std::numeric_limits<double>::infinity();
  for (const Event* event : row) {
    if (!is_communication(event->action.kind)) continue;
    if (compute.overlaps(*event) || event->begin < free_from)
      strips.insert(event);
    else
      free_from = event->end;
  }
  return strips;
}

// One font size for the whole panel: the largest at which nine of ten labels fit their cells.
double label_size(const Axis& axis, const Timeline& timeline) {
  for (double size : {12.0, 11.0, 10.0, 9.0}) {
    int cells = 0;
    int fitting = 0;
    for (const Event& event : timeline.events) {
      if (!takes_rank(event) || event.action.micro_batch < 0) continue;
      const double width = (event.end - event.begin) / axis.seconds * axis.width;
      ++cells;
      fitting += text_width(cell_label(event.action), size) + 2 <= width;
    }
    if (fitting * 10 >= cells * 9) return size;
  }
  return 9;
}

void draw_idle(SvgWriter& svg, const Axis& axis, const Panel& panel, int rank,
               const std::vector<const Event*>& events) {
  double free_from = panel.span.begin;
  const auto gap = [&](double from, double to) {
    const double x0 = axis.x(from - panel.span.begin);
    const double x1 = axis.x(to - panel.span.begin);
    if (x1 - x0 < smallest_idle) return;
    svg.element("rect", {{"class", "idle"},
                         {"x", x0 + 0.5},
                         {"y", panel.row(rank) + 0.5},
                         {"width", x1 - x0 - 1},
                         {"height", row_height - 1}});
  };
  for (const Event* event : events) {
    gap(free_from, event->begin);
    free_from = std::max(free_from, event->end);
  }
  gap(free_from, panel.span.end);
}

std::string tooltip(const Event& event, const Axis& axis, const Panel& panel) {
  return text(grid_label(event.action), " · ", kind_name(event.action.kind), " · ",
              schedule::rank_name(*panel.timeline, event.rank), " · ",
              duration_text(event.end - event.begin, axis.unit), " from ",
              duration_text(event.begin - panel.span.begin, axis.unit));
}

enum class Height { Row, Strip };

void draw_cell(SvgWriter& svg, const Axis& axis, const Panel& panel, const Event& event, int chunk,
               Height height) {
  const double x0 = axis.x(event.begin - panel.span.begin);
  const double x1 = axis.x(event.end - panel.span.begin);
  const double seam = x1 - x0 > 4 ? 0.5 : 0;  // half of the gap between neighbours
  const double strip = height == Height::Strip ? std::round(row_height * 0.65) : 0;
  const double y = panel.row(event.rank) + strip;
  const std::string fill =
      palette::lighter(palette::of_kind(event.action.kind), std::min(0.4 * chunk, 0.75));
  svg.open("rect", {{"class", text("cell ", kind_letter(event.action.kind))},
                    {"x", x0 + seam},
                    {"y", y + 0.5},
                    {"width", std::max(x1 - x0 - 2 * seam, 0.3)},
                    {"height", row_height - 1 - strip},
                    {"rx", x1 - x0 > 8 ? 2.0 : 0.0},
                    {"fill", fill}});
  svg.element("title", {}, tooltip(event, axis, panel));
  svg.close();
}

void draw_row_names(SvgWriter& svg, const Axis& axis, const Panel& panel, int rank,
                    double seconds) {
  const Timeline& timeline = *panel.timeline;
  const std::vector<int> stages = stages_of(timeline, rank);
  const double middle = panel.row(rank) + row_height / 2;
  std::string stage_text;
  if (!stages.empty()) {
    stage_text = text(stages.size() == 1 ? "stage " : "stages ", join(stages, ", "));
    if (stages.size() > 4) stage_text = text(stages.size(), " stages");
  }
  svg.text(margin, stage_text.empty() ? middle + 4.5 : middle - 1.5,
           schedule::rank_name(timeline, rank),
           {{"font-size", 12.5}, {"font-weight", 600}, {"fill", palette::ink_colour}});
  if (!stage_text.empty()) {
    svg.text(margin, middle + 11.5, stage_text,
             {{"font-size", 10.5}, {"fill", palette::quiet_colour}});
  }
  const double length = panel.span.length();
  const double busy = length > 0 ? seconds / length : 0;
  svg.text(axis.left + axis.width + 12, middle + 4, text("busy ", percent(busy)),
           {{"class", "busy"}, {"font-size", 11}, {"fill", palette::quiet_colour}});
}

}  // namespace

bool drawable(const Event& event, const Timeline& timeline) {
  return event.rank >= 0 && event.rank < timeline.rank_count && std::isfinite(event.begin) &&
         std::isfinite(event.end);
}

void draw_rows(SvgWriter& svg, const Axis& axis, const Panel& panel) {
  const Timeline& timeline = *panel.timeline;
  const std::vector<std::vector<const Event*>> rows = events_of_ranks(timeline);
  const std::vector<double> busy = schedule::busy(timeline);
  for (int rank = 0; rank < timeline.rank_count; ++rank) {
    const std::vector<const Event*>& events = rows[rank];
    const std::vector<int> stages = stages_of(timeline, rank);
    draw_row_names(svg, axis, panel, rank, busy[rank]);
    svg.open("g", {{"fill", "url(#trestle-idle)"}});
    draw_idle(svg, axis, panel, rank, events);
    svg.close();
    const std::set<const Event*> strips = strips_of(events);
    for (const Height height : {Height::Row, Height::Strip}) {
      for (const Event* event : events) {
        if (strips.contains(event) != (height == Height::Strip)) continue;
        draw_cell(svg, axis, panel, *event, chunk_of(stages, event->action.stage), height);
      }
    }
  }
}

void draw_labels(SvgWriter& svg, const Axis& axis, const Panel& panel) {
  const Timeline& timeline = *panel.timeline;
  const double font_size = label_size(axis, timeline);
  svg.open("g", {{"class", "labels"},
                 {"font-size", font_size},
                 {"text-anchor", "middle"},
                 {"fill", palette::ink_colour},
                 {"pointer-events", "none"}});
  std::set<const Event*> strips;
  for (const auto& row : events_of_ranks(timeline)) strips.merge(strips_of(row));
  for (const Event& event : timeline.events) {
    if (!takes_rank(event) || !drawable(event, timeline)) continue;
    if (strips.contains(&event)) continue;
    const double x0 = axis.x(event.begin - panel.span.begin);
    const double x1 = axis.x(event.end - panel.span.begin);
    const std::string label = cell_label(event.action);
    if (text_width(label, font_size) + 2 > x1 - x0) continue;
    svg.text((x0 + x1) / 2, panel.row(event.rank) + row_height / 2 + font_size * 0.36, label);
  }
  svg.close();
}

}  // namespace trestle::view::parts
