#include <algorithm>
#include <cmath>

#include "trestle/base/text.h"
#include "trestle/view/labels.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_parts.h"

// The messages of tensor ranks, as strips at the bottom of the actions that they are part of.
namespace trestle::view::parts {
namespace {

using schedule::TensorMessage;

constexpr double strip_height = 7;

std::string words_of_message(const TensorMessage& message, const Axis& axis, const Panel& panel) {
  return text(schedule::tensor_message_name(message.kind), " of tensor ranks · ",
              format_bytes(message.bytes), " · ",
              schedule::rank_name(*panel.timeline, message.rank), " · ",
              duration_text(message.hidden(), axis.unit), " hidden, ",
              duration_text(message.exposed(), axis.unit), " exposed, from ",
              duration_text(message.begin - panel.span.begin, axis.unit));
}

}  // namespace

void draw_tensor_messages(SvgWriter& svg, const Axis& axis, const Panel& panel) {
  const schedule::Timeline& timeline = *panel.timeline;
  if (timeline.tensor_messages.empty()) return;
  svg.open("g", {{"class", "tensor"}});
  for (const TensorMessage& message : timeline.tensor_messages) {
    const bool is_drawable = message.rank >= 0 && message.rank < timeline.rank_count &&
                             std::isfinite(message.begin) && std::isfinite(message.end);
    if (!is_drawable) continue;
    const auto draw = [&](double begin, double end, const char* name, std::string_view colour) {
      const double x0 = axis.x(begin - panel.span.begin), x1 = axis.x(end - panel.span.begin);
      svg.open("rect", {{"class", name},
                        {"x", x0},
                        {"y", panel.row(message.rank) + row_height - strip_height - 0.5},
                        {"width", std::max(x1 - x0, 0.3)},
                        {"height", strip_height},
                        {"fill", colour}});
      svg.element("title", {}, words_of_message(message, axis, panel));
      svg.close();
    };
    if (message.hidden() > 0) draw(message.begin, message.wait, "hidden", palette::hidden_colour);
    draw(message.wait, message.end, "exposed", palette::exposed_colour);
  }
  svg.close();
}

}  // namespace trestle::view::parts
