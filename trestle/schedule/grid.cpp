#include "trestle/schedule/grid.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "trestle/base/terminal.h"
#include "trestle/base/text.h"

namespace trestle::schedule {
namespace {

constexpr std::size_t most_columns = 16;
constexpr std::size_t most_rows = 16;

std::size_t width_of(const std::string& cell) { return static_cast<std::size_t>(columns_of(cell)); }

std::string padded(const std::string& cell, std::size_t width) {
  return cell + std::string(width - std::min(width, width_of(cell)), ' ');
}

// The first entry of the window of `size` entries around `middle`, out of `count`.
std::size_t window(std::size_t middle, std::size_t size, std::size_t count) {
  if (count <= size) return 0;
  const std::size_t first = middle > size / 2 ? middle - size / 2 : 0;
  return std::min(first, count - size);
}

// The table as rows of cells. Only the cells in the window around the mark become text, because a
// table may have millions.
class Grid {
 public:
  Grid(const Schedule& schedule, std::optional<GridCell> mark, std::string word = "")
      : schedule_(schedule), mark_(mark), word_(std::move(word)) {}

  std::string text_form() const {
    const std::size_t count = schedule_.ranks.size();
    const std::size_t top =
        window(mark_ ? static_cast<std::size_t>(mark_->rank) : 0, most_rows, count);
    const std::size_t bottom = std::min(top + most_rows, count);
    std::vector<std::vector<std::size_t>> rows;
    std::size_t columns = 0, marked = 0;
    for (std::size_t rank = top; rank < bottom; ++rank) {
      rows.push_back(visible(rank));
      columns = std::max(columns, rows.back().size());
      for (std::size_t i = 0; i < rows.back().size(); ++i)
        if (is_marked(rank, rows.back()[i])) marked = i;
    }
    const std::size_t left = window(marked, most_columns, columns);
    std::vector<std::vector<std::string>> cells(rows.size());
    std::size_t width = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      for (std::size_t i = left; i < std::min(left + most_columns, rows[row].size()); ++i) {
        cells[row].push_back(cell(top + row, rows[row][i]));
        width = std::max(width, width_of(cells[row].back()));
      }
    }
    std::vector<std::string> lines;
    if (top > 0) lines.push_back(text("  ... ", top, " ranks above"));
    for (std::size_t row = 0; row < rows.size(); ++row) {
      std::string line =
          padded(text("  rank ", top + row), text("  rank ", bottom - 1).size()) + " |";
      if (left > 0) line += " ...";
      for (const std::string& shown : cells[row]) line += " " + padded(shown, width);
      if (rows[row].size() > left + most_columns) line += " ...";
      lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
    }
    if (bottom < count) lines.push_back(text("  ... ", count - bottom, " ranks below"));
    return join(lines, "\n");
  }

 private:
  const std::vector<Action>& actions(std::size_t rank) const { return schedule_.ranks[rank]; }

  bool is_marked(std::size_t rank, std::size_t index) const {
    return mark_ && static_cast<std::size_t>(mark_->rank) == rank && mark_->index == index;
  }

  // The indices in the rank's row of the cells that are shown.
  std::vector<std::size_t> visible(std::size_t rank) const {
    std::vector<std::size_t> shown;
    for (std::size_t index = 0; index < actions(rank).size(); ++index)
      if (is_marked(rank, index) || is_compute(actions(rank)[index].kind)) shown.push_back(index);
    if (!word_.empty() && is_marked(rank, actions(rank).size()))
      shown.push_back(actions(rank).size());
    return shown;
  }

  std::string cell(std::size_t rank, std::size_t index) const {
    const std::string shown =
        index < actions(rank).size() ? to_string(actions(rank)[index]) : word_;
    return is_marked(rank, index) ? ">" + shown + "<" : " " + shown + " ";
  }

  const Schedule& schedule_;
  std::optional<GridCell> mark_;
  std::string word_;  // the cell behind the last action of the mark's row; "" if it has none
};

}  // namespace

std::string format_grid(const Schedule& schedule, std::optional<GridCell> mark) {
  return Grid(schedule, mark).text_form();
}

std::string format_grid_with(const Schedule& schedule, int rank, const std::string& word) {
  const GridCell end{rank, schedule.ranks[static_cast<std::size_t>(rank)].size()};
  return Grid(schedule, end, word).text_form();
}

}  // namespace trestle::schedule
