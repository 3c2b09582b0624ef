#include "trestle/view/split_marks.h"

#include <algorithm>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/view/palette.h"

namespace trestle::view::marks {
namespace {

using Layout = SplitPicture::Layout;

constexpr double column_gap = 18;
constexpr double legend_line = 20;

const char* dashes(Layout layout) {
  if (layout == Layout::Tokens) return "7 4";
  return layout == Layout::Terms ? "1.5 3.5" : "none";
}

// The left ends of the columns, and the right end of the last one.
std::vector<double> column_ends(const SplitTable& table) {
  std::vector<double> ends = {swatch};
  for (std::size_t i = 0; i < table.head.size(); ++i) {
    double widest = text_width(table.head[i], small_font);
    for (const auto& row : table.rows) widest = std::max(widest, text_width(row[i], words_font));
    ends.push_back(ends.back() + widest + column_gap);
  }
  ends.back() -= column_gap;
  return ends;
}

bool has_layout(const SplitPicture& picture, Layout layout) {
  for (const auto& section : picture.sections)
    for (const auto& step : section.steps)
      if (step.input == layout || step.output == layout) return true;
  return false;
}

bool has_vectors(const SplitPicture& picture) {
  for (const auto& section : picture.sections)
    for (const auto& step : section.steps)
      for (const auto& tensor : step.tensors)
        if (tensor.shape.size() == 1) return true;
  return false;
}

bool has_messages(const SplitPicture& picture, Direction direction) {
  for (const auto& section : picture.sections)
    for (const auto& step : section.steps)
      for (const auto* exchange : {&step.before, &step.after})
        if (!(direction == Direction::Forward ? exchange->forward : exchange->backward).empty())
          return true;
  return false;
}

void draw_vector(SvgWriter& svg, double x, double baseline) {
  svg.element("rect", {{"x", x},
                       {"y", baseline - 7},
                       {"width", 22},
                       {"height", 6},
                       {"fill", palette::other_colour},
                       {"stroke", palette::memory_line_colour},
                       {"stroke-width", 0.8}});
}

}  // namespace

std::string_view colour_of(Direction direction) {
  return direction == Direction::Forward ? palette::skip_colour : palette::skip_gradient_colour;
}

void draw_arrow(SvgWriter& svg, double x, double baseline, Direction direction) {
  const double y = baseline - 4, tip = direction == Direction::Forward ? 5 : -5;
  svg.element(
      "path",
      {{"class", "arrow"},
       {"d", Path().move(x, y - tip).line(x + 11, y - tip).line(x + 5.5, y + tip).close().text()},
       {"fill", colour_of(direction)}});
}

void draw_swatch(SvgWriter& svg, double x, double baseline, std::string_view colour) {
  svg.element(
      "rect",
      {{"x", x}, {"y", baseline - 10}, {"width", 12}, {"height", 12}, {"rx", 2}, {"fill", colour}});
}

void draw_flow(SvgWriter& svg, const Flow& flow) {
  const auto line = [&](double x, std::string_view colour, double width) {
    svg.element("path", {{"class", "flow"},
                         {"d", Path().move(x, flow.top).line(x, flow.bottom).text()},
                         {"fill", "none"},
                         {"stroke", colour},
                         {"stroke-width", width},
                         {"stroke-dasharray", dashes(flow.layout)}});
  };
  if (flow.layout == Layout::Whole || flow.ranks == 1) {
    line(flow.centre, palette::axis_colour, 6);
    return;
  }
  const double pitch = flow.width / std::max(1, flow.ranks - 1);
  for (int rank = 0; rank < flow.ranks; ++rank)
    line(flow.centre + pitch * (rank - (flow.ranks - 1) / 2.0), palette::rank_line_colour(rank),
         std::min(2.4, pitch));
}

double width_of(const SplitTable& table) { return column_ends(table).back(); }

void draw_table(SvgWriter& svg, const SplitTable& table, double x, double baseline) {
  const std::vector<double> columns = column_ends(table);
  for (std::size_t i = 0; i < table.head.size(); ++i)
    svg.text(x + columns[i], baseline, table.head[i],
             {{"class", "head"}, {"font-size", small_font}, {"fill", palette::quiet_colour}});
  for (const int rank : shown_ranks(static_cast<int>(table.rows.size()))) {
    baseline += line_height;
    if (rank < 0) {
      svg.text(x + columns[0], baseline, "…",
               {{"font-size", words_font}, {"fill", palette::quiet_colour}});
      continue;
    }
    draw_swatch(svg, x, baseline, palette::slice_colour(rank));
    const auto& row = table.rows[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < row.size(); ++i)
      svg.text(x + columns[i], baseline, row[i],
               {{"class", "cell"}, {"font-size", words_font}, {"fill", palette::ink_colour}});
  }
}

Legend::Legend(const SplitPicture& picture, double left, double right)
    : ranks_(picture.ranks), left_(left), right_(right) {
  using Mark = Item::Mark;
  std::vector<Item> ranks, marks;
  constexpr int colours = 8;
  for (int rank = 0; rank < std::min(ranks_, colours); ++rank)
    ranks.push_back({.words = text("rank ", rank), .colour = palette::slice_colour(rank)});
  if (ranks_ > colours)
    ranks.back().words += text("; ranks ", colours, " to ", ranks_ - 1, " repeat the colours");
  ranks.push_back({.words = ranks_ == 1 ? "whole on the only rank" : "whole on every rank",
                   .colour = std::string(palette::other_colour)});
  if (has_vectors(picture))
    ranks.push_back({.mark = Mark::Vector, .words = "thin: a bias or a norm's vector"});
  const auto flow = [&](Layout layout, const char* words) {
    if (has_layout(picture, layout))
      marks.push_back({.mark = Mark::Flow, .words = words, .layout = layout});
  };
  flow(Layout::Whole, "activations, whole on every rank");
  flow(Layout::Features, "each rank its features");
  flow(Layout::Terms, "each rank a term of the sum");
  flow(Layout::Tokens, "each rank its tokens");
  for (const Direction direction : {Direction::Forward, Direction::Backward})
    if (has_messages(picture, direction))
      marks.push_back(
          {.mark = Mark::Arrow,
           .words = text("sent in the ", direction == Direction::Forward ? "forward" : "backward"),
           .direction = direction});
  add(std::move(ranks));
  add(std::move(marks));
}

double Legend::mark_width(const Item& item) const {
  if (item.mark == Item::Mark::Vector) return 22;
  if (item.mark != Item::Mark::Flow || item.layout == Layout::Whole) return 12;
  return 6.0 * std::min(ranks_, 4) - 2;
}

// Wraps a line at the right end.
void Legend::add(std::vector<Item> line) {
  double x = left_;
  height_ += legend_line;
  for (Item& item : line) {
    const double width = mark_width(item) + 7 + text_width(item.words, small_font);
    if (x > left_ && x + width > right_) {
      x = left_;
      height_ += legend_line;
    }
    item.x = x;
    item.y = height_ - 6;
    x += width + 16;
    items_.push_back(std::move(item));
  }
}

void Legend::draw(SvgWriter& svg, double top) const {
  svg.open("g", {{"class", "legend"}, {"font-size", small_font}, {"fill", palette::ink_colour}});
  for (const Item& item : items_) {
    const double baseline = top + item.y, width = mark_width(item);
    if (item.mark == Item::Mark::Swatch)
      draw_swatch(svg, item.x, baseline, item.colour);
    else if (item.mark == Item::Mark::Vector)
      draw_vector(svg, item.x, baseline);
    else if (item.mark == Item::Mark::Arrow)
      draw_arrow(svg, item.x, baseline, item.direction);
    else
      draw_flow(svg, {.layout = item.layout,
                      .ranks = std::min(ranks_, 4),
                      .centre = item.x + width / 2,
                      .width = width - 4,
                      .top = baseline - 12,
                      .bottom = baseline + 3});
    svg.text(item.x + width + 7, baseline, item.words);
  }
  svg.close();
}

}  // namespace trestle::view::marks
