#include <algorithm>
#include <cmath>

#include "trestle/base/text.h"
#include "trestle/view/labels.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_parts.h"

// The rows of hosts below the ranks of a panel.
namespace trestle::view::parts {
namespace {

using schedule::Crossing;
using schedule::Kind;

std::string_view colour_of(Kind kind) {
  switch (kind) {
    case Kind::SendActivation:
    case Kind::SendSkip:
      return palette::of_kind(Kind::Forward);
    case Kind::SendGradient:
    case Kind::SendSkipGradient:
      return palette::of_kind(Kind::Backward);
    default:
      return palette::of_kind(Kind::ReduceGrad);
  }
}

// "skip down1", "activation", "gradient": what a SEND sends.
std::string content(const Crossing& crossing, const schedule::Timeline& timeline) {
  const schedule::Action& action = crossing.action;
  const bool skip = action.route >= 0 && action.route < static_cast<int>(timeline.routes.size());
  std::string name = skip ? "skip " + timeline.routes[action.route].name : "";
  switch (action.kind) {
    case Kind::SendActivation:
      return "activation";
    case Kind::SendGradient:
      return "gradient";
    case Kind::SendSkip:
      return name;
    case Kind::SendSkipGradient:
      return "gradient of " + name;
    default:
      return std::string(kind_name(action.kind));
  }
}

// The share of the panel's time in which something leaves the host.
double busy_share(const std::vector<const Crossing*>& row, double length) {
  double busy = 0, until = 0;
  bool first = true;
  for (const Crossing* crossing : row) {
    const double from = first ? crossing->begin : std::max(until, crossing->begin);
    busy += std::max(0.0, crossing->end - from);
    until = first ? crossing->end : std::max(until, crossing->end);
    first = false;
  }
  return length > 0 ? busy / length : 0;
}

}  // namespace

void draw_hosts(SvgWriter& svg, const Axis& axis, const Panel& panel) {
  const schedule::Timeline& timeline = *panel.timeline;
  for (std::size_t index = 0; index < panel.hosts.size(); ++index) {
    const int host = panel.hosts[index];
    const double y = panel.host_row(index);
    std::vector<const Crossing*> row;
    for (const Crossing& crossing : timeline.crossings)
      if (crossing.host == host && std::isfinite(crossing.begin) && std::isfinite(crossing.end))
        row.push_back(&crossing);
    svg.open("g", {{"class", "host"}});
    svg.text(margin, y + host_height - 3, text("from host ", host),
             {{"font-size", 10.5}, {"fill", palette::quiet_colour}});
    svg.element("rect", {{"x", axis.left},
                         {"y", y},
                         {"width", axis.x(panel.span.length()) - axis.left},
                         {"height", host_height},
                         {"fill", palette::idle_colour}});
    for (const Crossing* crossing : row) {
      const double x0 = axis.x(crossing->begin - panel.span.begin);
      const double x1 = axis.x(crossing->end - panel.span.begin);
      svg.open("rect", {{"class", "crossing"},
                        {"x", x0},
                        {"y", y},
                        {"width", std::max(x1 - x0, 0.3)},
                        {"height", host_height},
                        {"fill", colour_of(crossing->action.kind)},
                        {"stroke", palette::background_colour},
                        {"stroke-width", x1 - x0 > 3 ? 0.6 : 0},
                        {"fill-opacity", 0.8}});
      svg.element("title", {},
                  text(content(*crossing, timeline),
                       crossing->action.micro_batch >= 0
                           ? text(" · micro-batch ", crossing->action.micro_batch)
                           : "",
                       " · from host ", host, " · ",
                       duration_text(crossing->end - crossing->begin, axis.unit), " from ",
                       duration_text(crossing->begin - panel.span.begin, axis.unit)));
      svg.close();
    }
    svg.text(axis.left + axis.width + 12, y + host_height - 3,
             text("link ", percent(busy_share(row, panel.span.length()))),
             {{"font-size", 11}, {"fill", palette::quiet_colour}});
    svg.close();
  }
}

}  // namespace trestle::view::parts
