#include <cmath>
#include <map>
#include <tuple>

#include "trestle/base/text.h"
#include "trestle/view/links.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_parts.h"

// Draws skips as thin arrows and their gradients as dashed arrows.
namespace trestle::view::parts {
namespace {

using schedule::Event;
using schedule::Timeline;

constexpr double fan = 3.5;  // pixels between arrows with the same ends

// Many arrows are drawn fainter, so that the cells below them stay readable.
double opacity(std::size_t arrows) {
  return std::clamp(1.0 - static_cast<double>(arrows) / 200, 0.35, 0.8);
}

std::string arrow_path(const Axis& axis, const Panel& panel, const Event& from, const Event& to,
                       double departs, int nth) {
  const double shift = fan * nth;
  const double x0 = axis.x(departs - panel.span.begin) - shift;
  const double x1 = axis.x(to.begin - panel.span.begin) + 3 + shift;
  const double top_from = panel.row(from.rank);
  const double top_to = panel.row(to.rank);
  constexpr double head_size = 3;  // the arrow head ends slightly inside the cell
  Path path;
  if (from.rank == to.rank) {  // a flat arc above the row
    const double bow = top_from - 9;
    path.move(x0, top_from + head_size).curve(x0, bow, x1, bow, x1, top_to + head_size);
    return path.text();
  }
  const bool down = to.rank > from.rank;
  const double y0 = down ? top_from + row_height - head_size : top_from + head_size;
  const double y1 = down ? top_to + head_size : top_to + row_height - head_size;
  const double pull = (y1 - y0) * 0.55;
  path.move(x0, y0).curve(x0, y0 + pull, x1, y1 - pull, x1, y1);
  return path.text();
}

}  // namespace

void draw_skips(SvgWriter& svg, const Axis& axis, const Panel& panel) {
  const Timeline& timeline = *panel.timeline;
  std::map<std::tuple<std::size_t, std::size_t>, int> same_ends;
  std::vector<Link> arrows = links(timeline);
  std::erase_if(arrows, [](const Link& link) {
    return link.kind != LinkKind::Skip && link.kind != LinkKind::SkipGradient;
  });
  for (const Link& link : arrows) {
    const bool gradient = link.kind == LinkKind::SkipGradient;
    const Event& from = timeline.events[link.from];
    const Event& to = timeline.events[link.to];
    if (!drawable(from, timeline) || !drawable(to, timeline) || !std::isfinite(link.departs)) {
      continue;
    }
    const int nth = same_ends[{link.from, link.to}]++ % 4;
    svg.open("g", {{"class", gradient ? "skip-gradient" : "skip"}});
    svg.element("title", {},
                text(gradient ? "gradient of skip " : "skip ", timeline.routes[link.route].name,
                     " · micro-batch ", link.micro_batch, " · stage ", from.action.stage, " to ",
                     to.action.stage));
    svg.element(
        "path",
        {{"d", arrow_path(axis, panel, from, to, link.departs, nth)},
         {"fill", "none"},
         {"stroke", gradient ? palette::skip_gradient_colour : palette::skip_colour},
         {"stroke-width", 1.1},
         {"stroke-opacity", opacity(arrows.size())},
         {"stroke-dasharray", gradient ? "4 2.5" : "none"},
         {"marker-end", gradient ? "url(#trestle-gradient-head)" : "url(#trestle-skip-head)"}});
    svg.close();
  }
}

void define_patterns(SvgWriter& svg) {
  svg.open("defs");
  svg.open("pattern", {{"id", "trestle-idle"},
                       {"width", 6},
                       {"height", 6},
                       {"patternUnits", "userSpaceOnUse"},
                       {"patternTransform", "rotate(45)"}});
  svg.element("rect", {{"width", 6}, {"height", 6}, {"fill", palette::idle_colour}});
  svg.element("rect", {{"width", 1.4}, {"height", 6}, {"fill", palette::idle_hatch_colour}});
  svg.close();
  for (const auto& [id, colour] :
       {std::pair{"trestle-skip-head", palette::skip_colour},
        std::pair{"trestle-gradient-head", palette::skip_gradient_colour}}) {
    svg.open("marker", {{"id", id},
                        {"viewBox", "0 0 8 8"},
                        {"refX", 7},
                        {"refY", 4},
                        {"markerWidth", 6},
                        {"markerHeight", 6},
                        {"markerUnits", "userSpaceOnUse"},
                        {"orient", "auto"}});
    svg.element("path", {{"d", "M0 0.8L8 4L0 7.2Z"}, {"fill", colour}});
    svg.close();
  }
  svg.close();
}

}  // namespace trestle::view::parts
