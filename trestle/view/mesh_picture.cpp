#include "trestle/view/mesh_picture.h"

#include <algorithm>
#include <cstddef>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/view/palette.h"
#include "trestle/view/svg_writer.h"

namespace trestle::view {

namespace {

constexpr double mesh_margin = 16, cell = 36, mesh_gap = 4, line = 20, font = 12;
constexpr std::string_view row_colours[] = {palette::forward_colour, palette::backward_colour,
                                            palette::weight_grad_colour, palette::recompute_colour,
                                            palette::other_colour};

struct MeshShape {
  explicit MeshShape(const mesh::MeshLayout& layout) {
    const auto& all = layout.dimensions();
    columns = all.back();
    if (all.size() > 1) rows = all[all.size() - 2];
    blocks = layout.size() / rows.size / columns.size;
    head = (all.size() > 2 ? line : 0) + 2 * line;
    left = mesh_margin + (all.size() > 1 ? text_width(rows.name, font) + 24 : 0);
    block_height = head + rows.size * (cell + mesh_gap) + line;
    width =
        std::max(left + columns.size * (cell + mesh_gap), left + text_width(columns.name, font)) +
        mesh_margin;
    height = 2 * mesh_margin + blocks * block_height - line;
  }
  mesh::Dimension rows{}, columns{};
  int blocks = 1;
  double head, left, block_height, width, height;
};

std::string place_of_block(const mesh::MeshLayout& layout, int first) {
  const std::vector<int> place = layout.coordinates(first);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i + 2 < place.size(); ++i)
    parts.push_back(text(layout.dimensions()[i].name, " ", place[i]));
  return join(parts, ", ");
}

void label(SvgWriter& svg, double x, double y, const std::string& words, const char* anchor) {
  svg.text(x, y, words, {{"text-anchor", anchor}, {"fill", palette::quiet_colour}});
}

void draw_block(SvgWriter& svg, const MeshShape& shape, const int* ranks, double top) {
  label(svg, shape.left, top - line - 6, shape.columns.name, "start");
  if (!shape.rows.name.empty())
    label(svg, mesh_margin, top + cell / 2 + 4, shape.rows.name, "start");
  for (int column = 0; column < shape.columns.size; ++column)
    label(svg, shape.left + column * (cell + mesh_gap) + cell / 2, top - 6, text(column), "middle");
  for (int row = 0; row < shape.rows.size; ++row) {
    const double y = top + row * (cell + mesh_gap);
    if (!shape.rows.name.empty()) label(svg, shape.left - 8, y + cell / 2 + 4, text(row), "end");
    const std::string_view colour =
        row_colours[static_cast<std::size_t>(row) % std::size(row_colours)];
    for (int column = 0; column < shape.columns.size; ++column) {
      const double x = shape.left + column * (cell + mesh_gap);
      svg.element(
          "rect",
          {{"x", x}, {"y", y}, {"width", cell}, {"height", cell}, {"rx", 3}, {"fill", colour}});
      svg.text(x + cell / 2, y + cell / 2 + 4, text(ranks[row * shape.columns.size + column]),
               {{"class", "rank"}, {"text-anchor", "middle"}, {"fill", palette::ink_colour}});
    }
  }
}

}  // namespace

std::string to_svg_mesh(const mesh::MeshLayout& layout) {
  constexpr int most = 4096;
  if (layout.size() > most)
    throw UsageError(text("a picture of ", layout.size(), " ranks: at most ", most));
  const MeshShape shape(layout);
  SvgWriter svg({.width = shape.width, .height = shape.height, .title = layout.to_text()});
  svg.open("g", {{"font-family", palette::font_family}, {"font-size", font}});
  const int in_block = shape.rows.size * shape.columns.size;
  for (int block = 0; block < shape.blocks; ++block) {
    const int* const ranks = layout.ranks().data() + std::ptrdiff_t{block} * in_block;
    const double top = mesh_margin + block * shape.block_height;
    if (layout.dimensions().size() > 2)
      svg.text(mesh_margin, top + font, place_of_block(layout, ranks[0]),
               {{"fill", palette::ink_colour}});
    draw_block(svg, shape, ranks, top + shape.head);
  }
  return std::move(svg).finish();
}

}  // namespace trestle::view
