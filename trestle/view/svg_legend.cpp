#include "trestle/view/svg_legend.h"

#include <set>
#include <string_view>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/view/labels.h"
#include "trestle/view/links.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_parts.h"

namespace trestle::view::parts {
namespace {

using schedule::Event;
using schedule::Kind;
using schedule::Timeline;

constexpr double font_size = 11.5;
constexpr double line_height = 20;
constexpr double between = 12;
constexpr double swatch_width = 22;  // a swatch and the blank after it
constexpr double arrow_width = 28;   // an arrow and the blank after it

struct Shown {
  std::set<Kind> kinds;
  std::set<std::string> skips;
  bool idle = false;
  bool skip_gradients = false;
  bool several_stages = false;
  bool tensor_messages = false, hidden_messages = false;
};

Shown collect_shown(const std::vector<Timeline>& panels, const SvgOptions& options) {
  Shown seen;
  for (const Timeline& timeline : panels) {
    for (const Event& event : timeline.events) {
      if (takes_rank(event)) seen.kinds.insert(event.action.kind);
    }
    seen.idle = seen.idle || schedule::idle_share_of_makespan(timeline) > 1e-9;
    seen.several_stages = seen.several_stages || timeline.stages > timeline.rank_count;
    for (const schedule::TensorMessage& message : timeline.tensor_messages) {
      seen.tensor_messages = true;
      seen.hidden_messages = seen.hidden_messages || message.hidden() > 0;
    }
    if (options.skips == SkipArrows::Hide) continue;
    for (const Link& link : links(timeline)) {
      if (link.kind == LinkKind::Skip) seen.skips.insert(timeline.routes[link.route].name);
      seen.skip_gradients = seen.skip_gradients || link.kind == LinkKind::SkipGradient;
    }
  }
  return seen;
}

}  // namespace

Legend::Legend(const std::vector<Timeline>& panels, const SvgOptions& options, double width)
    : width_(width) {
  const Shown seen = collect_shown(panels, options);
  std::vector<std::string_view> other;
  for (Kind kind : seen.kinds) {
    if (palette::of_kind(kind) == palette::other_colour) {
      other.push_back(kind_name(kind));
    } else {
      add({.label = std::string(kind_name(kind)), .fill = std::string(palette::of_kind(kind))});
    }
  }
  if (!other.empty()) add({.label = join(other, ", "), .fill = std::string(palette::other_colour)});
  if (seen.several_stages) {
    add({.label = "lighter: the rank's later stages",
         .fill = palette::lighter(palette::forward_colour, 0.4)});
  }
  if (seen.idle) add({.label = "idle", .fill = "url(#trestle-idle)"});
  if (seen.tensor_messages)
    add({.label = "message of tensor ranks, waited for",
         .fill = std::string(palette::exposed_colour)});
  if (seen.hidden_messages)
    add({.label = "hidden behind computation", .fill = std::string(palette::hidden_colour)});
  const bool one = seen.skips.size() == 1;
  if (!seen.skips.empty()) {
    const std::string names =
        seen.skips.size() <= 6 ? join(seen.skips, ", ") : text("(", seen.skips.size(), " of them)");
    add({.label = (one ? "skip " : "skips ") + names,
         .stroke = std::string(palette::skip_colour),
         .dash = "none",
         .head = "url(#trestle-skip-head)"});
  }
  if (seen.skip_gradients) {
    add({.label = one ? "its gradient" : "their gradients",
         .stroke = std::string(palette::skip_gradient_colour),
         .dash = "4 2.5",
         .head = "url(#trestle-gradient-head)"});
  }
}

void Legend::add(Item item) {
  const double symbol = item.fill.empty() ? arrow_width : swatch_width;
  const double width = symbol + text_width(item.label, font_size);
  int line = items_.empty() ? 0 : items_.back().line;
  if (next_x_ > 0 && next_x_ + width > width_) {
    next_x_ = 0;
    ++line;
  }
  item.x = next_x_;
  item.line = line;
  next_x_ += width + between;
  items_.push_back(std::move(item));
}

double Legend::height() const { return items_.empty() ? 0 : items_.back().line * line_height + 4; }

void Legend::draw(SvgWriter& svg, double baseline) const {
  svg.open("g", {{"class", "legend"}});
  for (const Item& item : items_) {
    const double x = margin + item.x;
    const double y = baseline + item.line * line_height;
    if (item.fill.empty()) {
      svg.element("path", {{"d", Path().move(x, y - 4).line(x + arrow_width - 6, y - 4).text()},
                           {"stroke", item.stroke},
                           {"stroke-width", 1.2},
                           {"stroke-dasharray", item.dash},
                           {"marker-end", item.head}});
    } else {
      svg.element("rect", {{"x", x},
                           {"y", y - 10},
                           {"width", swatch_width - 6},
                           {"height", 12},
                           {"rx", 2},
                           {"fill", item.fill}});
    }
    svg.text(x + (item.fill.empty() ? arrow_width : swatch_width), y, item.label,
             {{"font-size", font_size}, {"fill", palette::quiet_colour}});
  }
  svg.close();
}

}  // namespace trestle::view::parts
