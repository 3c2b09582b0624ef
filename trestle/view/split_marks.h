#pragma once

#include <string_view>
#include <vector>

#include "trestle/view/split_picture.h"
#include "trestle/view/split_table.h"
#include "trestle/view/svg_writer.h"

// The marks of a picture of a split, and its legend. Not installed.
namespace trestle::view::marks {

inline constexpr double line_height = 16;
inline constexpr double words_font = 12, small_font = 11;
inline constexpr double swatch = 20;  // width of a table's row before its first column

enum class Direction { Forward, Backward };

// Blue for the forward, brown for the backward.
std::string_view colour_of(Direction direction);

// A triangle in the middle of a line of text: down for the forward, up for the backward.
void draw_arrow(SvgWriter& svg, double x, double baseline, Direction direction);

void draw_swatch(SvgWriter& svg, double x, double baseline, std::string_view colour);

// The activations from `top` to `bottom`: one broad line, or a line for each rank, at most `width`
// pixels apart together.
struct Flow {
  SplitPicture::Layout layout = SplitPicture::Layout::Whole;
  int ranks = 1;
  double centre = 0, width = 0;
  double top = 0, bottom = 0;
};
void draw_flow(SvgWriter& svg, const Flow& flow);

// The width with the swatches.
double width_of(const SplitTable& table);
// Draws a row for each of shown_ranks() with a swatch. `baseline` is that of the heads.
void draw_table(SvgWriter& svg, const SplitTable& table, double x, double baseline);

// The colours of the ranks, and the marks that the picture has.
class Legend {
 public:
  Legend(const SplitPicture& picture, double left, double right);

  double height() const { return height_; }
  void draw(SvgWriter& svg, double top) const;

 private:
  struct Item {
    enum class Mark { Swatch, Vector, Flow, Arrow } mark = Mark::Swatch;
    std::string words = {};
    std::string colour = {};  // of a swatch
    SplitPicture::Layout layout = SplitPicture::Layout::Whole;
    Direction direction = Direction::Forward;
    double x = 0, y = 0;  // of the mark's left end and the words' baseline
  };
  double mark_width(const Item& item) const;
  void add(std::vector<Item> line);

  int ranks_;
  double left_, right_, height_ = 0;
  std::vector<Item> items_;
};

}  // namespace trestle::view::marks
