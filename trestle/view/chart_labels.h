#pragma once

#include <algorithm>
#include <vector>

// The places of a chart's labels in pixels, for every picture with axes. Not installed.
namespace trestle::view {

// The place of a text: its baseline, and its start, middle or end.
struct LabelPlace {
  double x = 0, y = 0;
};

// The end of a tick's label, left of the y axis at x = `axis`.
inline LabelPlace y_tick_label(double axis, double tick) { return {axis - 10, tick + 4}; }

// The middle of a tick's label, below the x axis at y = `axis`.
inline LabelPlace x_tick_label(double tick, double axis) { return {tick, axis + 18}; }

// The start of a line's name, right of the plot that ends at x = `right`.
inline LabelPlace line_name(double right, double y) { return {right + 12, y + 4}; }

// Sorts the names of lines by their member y, and moves them apart by at least the height of a
// line: first down, from `top` on, then up, to stay above `bottom`.
template <class Name>
void move_apart(std::vector<Name>& names, double top, double bottom) {
  constexpr double line_height = 16;
  std::sort(names.begin(), names.end(), [](const Name& a, const Name& b) { return a.y < b.y; });
  double next = top;
  for (Name& name : names) next = (name.y = std::max(name.y, next)) + line_height;
  double limit = bottom;
  for (auto name = names.rbegin(); name != names.rend(); ++name)
    limit = (name->y = std::min(name->y, limit)) - line_height;
}

}  // namespace trestle::view
