#include "trestle/schedule/grid.h"

#include <algorithm>
#include <vector>

#include "trestle/base/text.h"

namespace trestle::schedule {
namespace {

constexpr std::size_t most_columns = 16;
constexpr std::size_t most_rows = 16;

struct Row {
  std::vector<std::string> cells;
};

std::string padded(std::string cell, std::size_t width) {
  cell.resize(std::max(width, cell.size()), ' ');
  return cell;
}

// The first entry of the window of `size` entries around `middle`, out of `count`.
std::size_t window(std::size_t middle, std::size_t size, std::size_t count) {
  if (count <= size) return 0;
  const std::size_t first = middle > size / 2 ? middle - size / 2 : 0;
  return std::min(first, count - size);
}

}  // namespace

std::string format_grid(const Schedule& schedule, std::optional<GridCell> mark) {
  std::vector<Row> rows(schedule.ranks.size());
  std::size_t marked_column = 0;
  std::size_t columns = 0;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    for (std::size_t index = 0; index < schedule.ranks[rank].size(); ++index) {
      const Action& action = schedule.ranks[rank][index];
      const bool marked =
          mark && static_cast<std::size_t>(mark->rank) == rank && mark->index == index;
      if (!marked && !is_compute(action.kind)) continue;
      if (marked) marked_column = rows[rank].cells.size();
      rows[rank].cells.push_back(marked ? ">" + to_string(action) + "<"
                                        : " " + to_string(action) + " ");
    }
    columns = std::max(columns, rows[rank].cells.size());
  }
  const std::size_t left = window(marked_column, most_columns, columns);
  const std::size_t top =
      window(mark ? static_cast<std::size_t>(mark->rank) : 0, most_rows, rows.size());
  const std::size_t right = std::min(left + most_columns, columns);
  const std::size_t bottom = std::min(top + most_rows, rows.size());
  std::size_t width = 0;
  for (std::size_t rank = top; rank < bottom; ++rank) {
    for (std::size_t i = left; i < std::min(right, rows[rank].cells.size()); ++i) {
      width = std::max(width, rows[rank].cells[i].size());
    }
  }
  std::string out;
  if (top > 0) out += text("  ... ", top, " ranks above\n");
  for (std::size_t rank = top; rank < bottom; ++rank) {
    std::string line = padded(text("  rank ", rank), text("  rank ", bottom - 1).size()) + " |";
    if (left > 0) line += " ...";
    for (std::size_t i = left; i < std::min(right, rows[rank].cells.size()); ++i) {
      line += " " + padded(rows[rank].cells[i], width);
    }
    if (right < rows[rank].cells.size()) line += " ...";
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  if (bottom < rows.size()) out += text("  ... ", rows.size() - bottom, " ranks below\n");
  return out;
}

}  // namespace trestle::schedule
