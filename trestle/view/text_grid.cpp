#include "trestle/view/text_grid.h"

#include <algorithm>
#include <cmath>

#include "trestle/base/terminal.h"
#include "trestle/base/text.h"
#include "trestle/view/labels.h"
#include "trestle/view/time_axis.h"

namespace trestle::view {
namespace {

using schedule::Event;
using schedule::Timeline;

// Maps seconds to columns. A slot is `slot` seconds wide and takes `cell` columns, of which the
// last is blank.
struct Grid {
  double origin = 0;
  double slot = 1;
  double cell = 4;
  int columns = 0;
  bool scaled = false;  // cells are not whole columns wide: dashes show the lengths

  int column(double time) const {
    return std::clamp(static_cast<int>(std::lround((time - origin) / slot * cell)), 0, columns);
  }
};

int widest_label(const Timeline& timeline) {
  std::size_t widest = 1;
  for (const Event& event : timeline.events) {
    if (event.end > event.begin) widest = std::max(widest, grid_label(event.action).size());
  }
  return static_cast<int>(widest);
}

Grid make_grid(const Timeline& timeline, int available, int without_slots) {
  const Span all = span(timeline);
  Grid grid{.origin = all.begin, .slot = slot_length(timeline), .cell = 0, .columns = 0};
  const double cell = widest_label(timeline) + 1;
  const bool has_slots = grid.slot > 0 && all.length() / grid.slot * cell < 4000;
  if (!has_slots && available <= 0) available = without_slots;
  if (has_slots) {
    grid.cell = cell;
    grid.columns = static_cast<int>(std::lround(all.length() / grid.slot * cell));
    if (available <= 0 || grid.columns <= available + 1) return grid;
  }
  grid.columns = std::max(available, 8);
  grid.scaled = true;
  grid.slot = all.length() > 0 ? all.length() / grid.columns * cell : 1;
  grid.cell = cell;
  return grid;
}

// A row with a dot in the middle of every cell.
std::string idle_row(const Grid& grid) {
  std::string row(static_cast<std::size_t>(grid.columns), ' ');
  const int cell = static_cast<int>(grid.cell);
  for (int at = (cell - 1) / 2; at < grid.columns; at += cell) row[at] = '.';
  return row;
}

// The longest label of the action that fits: "0F3", "F3", "F".
std::string fitting_label(const schedule::Action& action, std::size_t room) {
  std::string label = grid_label(action);
  if (label.size() <= room) return label;
  const std::string letter = kind_letter(action.kind);
  const bool plain = action.micro_batch >= 0 && action.partner_micro_batch < 0;
  label = plain ? text(letter, action.micro_batch) : letter;
  return label.size() <= room ? label : letter;
}

void draw(std::string& row, const Grid& grid, const Event& event) {
  const int from = grid.column(event.begin);
  const int to = grid.column(event.end);
  if (to <= from) return;
  std::fill(row.begin() + from, row.begin() + to, ' ');
  const auto room =
      static_cast<std::size_t>(std::max(to - from - 1, 1));  // without the blank at its end
  std::string label = fitting_label(event.action, room);
  const bool one_slot = !grid.scaled && to - from <= static_cast<int>(grid.cell);
  if (!one_slot) label.resize(std::max(room, label.size()), '-');
  row.replace(from, label.size(), label);
}

// Removes dots next to an action, which would look like a part of its label.
void remove_touching_dots(std::string& row) {
  const auto is_name = [&](std::size_t i) { return row[i] != '.' && row[i] != ' '; };
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i] != '.') continue;
    if ((i > 0 && is_name(i - 1)) || (i + 1 < row.size() && is_name(i + 1))) row[i] = ' ';
  }
}

// "4 3 2 1", or "1000 999 998 ... 1 (of 1000 ranks)" for many ranks.
template <class Values>
std::string shortened(const Values& values, std::string_view separator) {
  constexpr std::size_t most = 32;
  if (values.size() <= most) return join(values, separator);
  const Values first(values.begin(), values.begin() + 3);
  return text(join(first, separator), separator, "...", separator, values.back(), " (of ",
              values.size(), " ranks)");
}

// The summary, no wider than `columns` even for the peaks of many ranks, which are one part.
std::string narrow_summary(const std::string& line, int columns) {
  constexpr int indent = 2;
  std::string lines;
  for (const std::string& part : split(folded(line, columns, indent), '\n'))
    lines += (columns_of(part) <= columns ? part : wrapped(part, columns, indent)) + "\n";
  return lines;
}

std::string without_trailing_blanks(std::string row) {
  row.erase(row.find_last_not_of(' ') + 1);
  return row;
}

std::string named_rows(const std::vector<std::string>& rows, const std::vector<std::string>& names,
                       std::size_t name_width) {
  std::string result;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    std::string name = names[rank];
    name.resize(name_width, ' ');
    result += without_trailing_blanks(name + "  " + rows[rank]) + "\n";
  }
  return result;
}

// Blocks of whole slots, each with a line that names its slots.
std::string folded_rows(const std::vector<std::string>& rows, const std::vector<std::string>& names,
                        const Grid& grid, std::size_t name_width, int available) {
  const int cell = static_cast<int>(grid.cell);
  const int slots = (grid.columns + cell - 1) / cell;
  const int in_block = std::max((available + 1) / cell, 1);
  std::string result;
  for (int first = 0; first < slots; first += in_block) {
    const int last = std::min(first + in_block, slots) - 1;
    const auto begin = static_cast<std::size_t>(first) * static_cast<std::size_t>(cell);
    // A cell's last column is blank, or the dashes of an action that the next block continues.
    const auto count = static_cast<std::size_t>(std::min(in_block * cell, std::max(available, 1)));
    result += text("slots ", first, " to ", last, "\n");
    std::vector<std::string> block;
    for (const std::string& row : rows) block.push_back(row.substr(begin, count));
    result += named_rows(block, names, name_width) + "\n";
  }
  return result;
}

}  // namespace

std::string to_text_grid(const Timeline& timeline, const TextGridOptions& options) {
  check_size({timeline});
  std::vector<std::string> names;
  std::size_t name_width = text("rank ", 0).size();
  for (int rank = 0; rank < timeline.rank_count; ++rank) {
    names.push_back(schedule::rank_name(timeline, rank));
    name_width = std::max(name_width, names.back().size());
  }
  constexpr int default_columns = 120, narrowest = 8;
  const auto room = [&](int columns) {
    return std::max(columns - static_cast<int>(name_width) - 2, narrowest);
  };
  const int row_width = options.fold > 0 ? room(options.fold) : 0;
  const Grid grid = make_grid(timeline, options.columns > 0 ? room(options.columns) : 0,
                              row_width > 0 ? row_width : default_columns);
  std::vector<std::string> rows(static_cast<std::size_t>(std::max(timeline.rank_count, 0)),
                                idle_row(grid));
  for (const Event& event : timeline.events) {
    if (event.rank < 0 || event.rank >= timeline.rank_count || !takes_rank(event)) continue;
    draw(rows[event.rank], grid, event);
  }
  for (std::string& row : rows) remove_touching_dots(row);
  const bool folds = options.columns <= 0 && row_width > 0 && !grid.scaled &&
                     grid.columns > row_width + 1;  // the last column of a cell is blank
  std::string below = summary(timeline) + "\n";
  if (options.fold > 0) below = narrow_summary(summary(timeline), options.fold);
  if (!folds) return named_rows(rows, names, name_width) + below;
  return folded_rows(rows, names, grid, name_width, row_width) + below;
}

std::string summary(const Timeline& timeline) {
  const TimeUnit unit = resolve(TimeUnit::Auto, {timeline});
  const double slot = unit == TimeUnit::Slots ? slot_length(timeline) : 0;
  const double length = span(timeline).length();
  constexpr double most_slots = 1e9;  // longer timelines show a duration instead
  const std::string size = slot > 0 && length / slot < most_slots
                               ? text(std::lround(length / slot), " slots")
                               : duration_text(length, TimeUnit::Seconds);
  std::string line =
      text("idle ", percent(schedule::idle_share_of_makespan(timeline)), " of ",
           timeline.rank_count, " x ", size, " (", percent(schedule::idle_share_of_ideal(timeline)),
           " of the ideal time) · peak activations ",
           shortened(schedule::peak_live_activations(timeline), " "));
  if (std::any_of(timeline.peak_bytes.begin(), timeline.peak_bytes.end(),
                  [](Bytes bytes) { return bytes > 0; })) {
    std::vector<std::string> peaks;
    for (Bytes bytes : timeline.peak_bytes) peaks.push_back(format_bytes(bytes));
    line += text(" · peak memory ", shortened(peaks, ", "));
  }
  return line;
}

}  // namespace trestle::view
