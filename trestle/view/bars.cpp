#include "trestle/view/bars.h"

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_writer.h"

namespace trestle::view {
namespace {

constexpr double bars_margin = 24, row_height = 42, bar_height = 20, bar_room = 190, bars_gap = 30;
constexpr double name_font = 13, note_font = 10.5, label_font = 11;
// In the order of the legend: bar, more, mark.
constexpr std::string_view bar_colour = palette::forward_colour;
constexpr std::string_view more_colour = "#dcebf8";
constexpr std::string_view mark_colour = palette::skip_gradient_colour;

double label_room(const BarPanel& panel) {
  double widest = 0;
  for (const Bar& bar : panel.bars) widest = std::max(widest, text_width(bar.label, label_font));
  return widest + 10;
}

struct BarsShape {
  explicit BarsShape(const BarsPicture& picture) {
    double names = 0;
    for (const auto& row : picture.rows)
      names = std::max({names, text_width(row.name, name_font), text_width(row.note, note_font)});
    top = bars_margin + (picture.title.empty() ? 0 : 26) + (picture.subtitle.empty() ? 0 : 20) + 34;
    double x = bars_margin + names + 18;
    for (const BarPanel& panel : picture.panels) {
      left.push_back(x);
      const double room = bar_room + label_room(panel);
      x += std::max(room, text_width(panel.title, name_font)) + bars_gap;
    }
    width = std::max(x - bars_gap,
                     std::max(text_width(picture.title, 18), text_width(picture.subtitle, 12)) +
                         bars_margin) +
            bars_margin;
    bottom = top + row_height * static_cast<double>(picture.rows.size());
    height = bottom + (picture.legend.empty() ? 0 : 34) + bars_margin / 2;
  }
  double top, bottom, width, height;
  std::vector<double> left;  // of each panel's bars
};

double largest(const BarPanel& panel) {
  double most = 0;
  for (const Bar& bar : panel.bars)
    most = std::max({most, bar.value + bar.more, bar.mark.value_or(0)});
  return most > 0 ? most : 1;
}

void box(SvgWriter& svg, const char* kind, double x, double y, double width,
         std::string_view fill) {
  svg.element("rect", {{"class", kind},
                       {"x", x},
                       {"y", y},
                       {"width", width},
                       {"height", bar_height},
                       {"fill", fill}});
}

void tick(SvgWriter& svg, double x, double y) {
  svg.element("path", {{"class", "mark"},
                       {"d", Path().move(x, y - 4).line(x, y + bar_height + 4).text()},
                       {"stroke", mark_colour},
                       {"stroke-width", 2.5}});
}

void draw_bar_panel(SvgWriter& svg, const BarsShape& shape, const BarPanel& panel, double left) {
  const double scale = bar_room / largest(panel);
  svg.text(left, shape.top - 14, panel.title,
           {{"font-size", name_font}, {"font-weight", 600}, {"fill", palette::ink_colour}});
  svg.element("path", {{"d", Path().move(left, shape.top - 4).line(left, shape.bottom).text()},
                       {"stroke", palette::axis_colour}});
  for (std::size_t i = 0; i < panel.bars.size(); ++i) {
    const Bar& bar = panel.bars[i];
    const double y =
        shape.top + row_height * static_cast<double>(i) + (row_height - bar_height) / 2;
    box(svg, "bar", left, y, scale * bar.value, bar_colour);
    if (bar.more > 0) box(svg, "more", left + scale * bar.value, y, scale * bar.more, more_colour);
    if (bar.mark) tick(svg, left + scale * *bar.mark, y);
    const double end = std::max(bar.value + bar.more, bar.mark.value_or(0));
    svg.text(left + scale * end + 8, y + bar_height / 2 + 4, bar.label,
             {{"class", "value"}, {"font-size", label_font}, {"fill", palette::ink_colour}});
  }
}

void draw_bar_names(SvgWriter& svg, const BarsShape& shape, const BarsPicture& picture) {
  for (std::size_t i = 0; i < picture.rows.size(); ++i) {
    const auto& row = picture.rows[i];
    const double middle = shape.top + row_height * (static_cast<double>(i) + 0.5);
    svg.text(bars_margin, row.note.empty() ? middle + 4 : middle - 2, row.name,
             {{"class", "row"}, {"font-size", name_font}, {"fill", palette::ink_colour}});
    if (!row.note.empty())
      svg.text(bars_margin, middle + 12, row.note,
               {{"font-size", note_font}, {"fill", palette::quiet_colour}});
  }
}

void draw_legend(SvgWriter& svg, const BarsShape& shape, const BarsPicture& picture) {
  constexpr double size = 12;
  const double y = shape.bottom + 22;
  double x = bars_margin;
  for (std::size_t i = 0; i < picture.legend.size(); ++i) {
    if (picture.legend[i].empty()) continue;
    if (i < 2) {
      svg.element("rect", {{"x", x},
                           {"y", y - size + 2},
                           {"width", size},
                           {"height", size},
                           {"fill", i == 0 ? bar_colour : more_colour}});
    } else {
      svg.element("path", {{"d", Path().move(x + 6, y - size).line(x + 6, y + 4).text()},
                           {"stroke", mark_colour},
                           {"stroke-width", 2.5}});
    }
    svg.text(x + size + 6, y, picture.legend[i],
             {{"font-size", label_font}, {"fill", palette::quiet_colour}});
    x += size + 6 + text_width(picture.legend[i], label_font) + 22;
  }
}

}  // namespace

std::string to_svg_bars(const BarsPicture& picture) {
  for (const BarPanel& panel : picture.panels)
    if (panel.bars.size() != picture.rows.size())
      throw UsageError(text("the panel '", panel.title, "' has ", panel.bars.size(), " bars for ",
                            picture.rows.size(), " rows"));
  const BarsShape shape(picture);
  SvgWriter svg({.width = shape.width, .height = shape.height, .title = picture.title});
  svg.open("g", {{"font-family", palette::font_family}});
  double y = bars_margin;
  if (!picture.title.empty())
    svg.text(bars_margin, y += 12, picture.title,
             {{"font-size", 18}, {"font-weight", 600}, {"fill", palette::ink_colour}});
  if (!picture.subtitle.empty())
    svg.text(bars_margin, y + 22, picture.subtitle,
             {{"font-size", 12}, {"fill", palette::quiet_colour}});
  draw_bar_names(svg, shape, picture);
  for (std::size_t i = 0; i < picture.panels.size(); ++i)
    draw_bar_panel(svg, shape, picture.panels[i], shape.left[i]);
  draw_legend(svg, shape, picture);
  return std::move(svg).finish();
}

}  // namespace trestle::view
