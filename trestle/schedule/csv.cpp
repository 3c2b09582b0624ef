#include "trestle/schedule/csv.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/utf8.h"
#include "trestle/schedule/grid.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/table_error.h"
#include "trestle/schedule/validate.h"

namespace trestle::schedule {
namespace {

constexpr std::string_view route_mark = "#route";
constexpr std::size_t route_fields = 5;

std::string quoted(std::string_view field) {
  if (field.find_first_of(",\"\r\n") == std::string_view::npos && trim(field) == field)
    return std::string(field);
  std::string out = "\"";
  for (const char c : field) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

struct Field {
  std::string text;
  std::size_t line = 1;
  std::size_t column = 1;         // 1 for the first field of a row
  bool last = false;              // whether it ends its row
  std::string_view problem = {};  // the rule that its quotes break
};

// "mine.csv:3", for messages.
std::string place(std::string_view name, std::size_t line) { return text(name, ":", line); }

// Reads RFC 4180 with some leniency: a lone "\n" ends a row as "\r\n" does, and blank lines are
// skipped. A rank without actions is a line of "".
class FieldReader {
 public:
  explicit FieldReader(std::string_view text) : rest_(text) {}

  bool next(Field* field) {
    if (column_ == 0) skip_blank_lines();
    if (column_ == 0 && rest_.empty()) return false;
    *field = {.text = {}, .line = line_, .column = ++column_};
    if (!rest_.empty() && rest_.front() == '"') {
      read_quoted(field);
    } else {
      const std::size_t end = std::min(rest_.find_first_of(",\n"), rest_.size());
      field->text = trim(rest_.substr(0, end));
      rest_.remove_prefix(end);
    }
    field->last = rest_.empty() || rest_.front() == '\n';
    if (field->last) column_ = 0;
    if (field->last && !rest_.empty()) ++line_;
    if (!rest_.empty()) rest_.remove_prefix(1);
    return true;
  }

 private:
  void skip_blank_lines() {
    for (std::size_t end = rest_.find('\n'); end != std::string_view::npos && !rest_.empty();
         end = rest_.find('\n')) {
      if (!trim(rest_.substr(0, end)).empty()) return;
      rest_.remove_prefix(end + 1);
      ++line_;
    }
    if (trim(rest_).empty()) rest_ = {};
  }

  void read_quoted(Field* field) {
    rest_.remove_prefix(1);
    while (true) {
      const std::size_t end = std::min(rest_.find('"'), rest_.size());
      field->text += rest_.substr(0, end);
      if (end == rest_.size()) field->problem = "a quoted field has no closing quote";
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      if (rest_.empty() || rest_.front() != '"') break;
      field->text += '"';
      rest_.remove_prefix(1);
    }
    line_ += static_cast<std::size_t>(std::count(field->text.begin(), field->text.end(), '\n'));
    if (!rest_.empty() && rest_.front() == '\r') rest_.remove_prefix(1);
    if (!rest_.empty() && rest_.front() != ',' && rest_.front() != '\n')
      field->problem = "text follows a closing quote";
  }

  std::string_view rest_;
  std::size_t line_ = 1;
  std::size_t column_ = 0;  // the last field's; 0 between rows
};

std::string marked_word(const Field& field) {
  constexpr std::size_t most_shown = 20;
  return field.text.empty() ? "\"\"" : printable(field.text, most_shown);
}

class TableReader {
 public:
  TableReader(std::string_view text, std::string_view name) : fields_(text), name_(name) {
    schedule_.name = name;
  }

  Schedule read() {
    for (Field field; fields_.next(&field);) {
      if (field.column == 1) begin_row(field);
      if (in_route_) route_.push_back(field);
      if (!field.problem.empty())
        fail(field, field.problem, "Put a quoted cell between two quotes, and a comma behind it.");
      if (!in_route_) read_action(field);
      if (in_route_ && field.last) read_route();
    }
    return std::move(schedule_);
  }

 private:
  void begin_row(const Field& first) {
    in_route_ = first.text == route_mark;
    if (in_route_) {
      route_.clear();
      return;
    }
    schedule_.ranks.emplace_back();
    if (!schedule_.routes.empty())
      fail(first, "a rank's row follows the routes", "Put all ranks first, then the #route lines.");
  }

  void read_action(const Field& field) {
    if (field.text.empty()) return;
    try {
      schedule_.ranks.back().push_back(parse_action(field.text));
    } catch (const FormatError& error) {
      const std::string_view message = error.what();
      fail(field, message.substr(0, message.find('\n')), error.where().hint);
    }
  }

  void read_route() {
    constexpr std::string_view form = "Expected '#route,FROM,TO,main|skip,NAME'.";
    if (route_.size() != route_fields) fail(route_.front(), "a route line has five fields", form);
    const std::string& kind = route_[3].text;
    if (kind != "main" && kind != "skip") fail(route_[3], "a route is 'main' or 'skip'", form);
    schedule_.routes.push_back({.from_stage = stage_number(route_[1]),
                                .to_stage = stage_number(route_[2]),
                                .skip = kind == "skip",
                                .name = route_[4].text});
  }

  int stage_number(const Field& field) const {
    constexpr int most = std::numeric_limits<std::int16_t>::max() - 1;
    int number = 0;
    const char* end = field.text.data() + field.text.size();
    const auto [rest, failure] = std::from_chars(field.text.data(), end, number);
    if (failure != std::errc{} || rest != end || number < 0 || number > most)
      fail(field, text("'", marked_word(field), "' is not a stage number"),
           text("Stages have the numbers 0 to ", most, "."));
    return number;
  }

  [[noreturn]] void fail(const Field& field, std::string_view rule, std::string_view hint) const {
    throw FormatError(text("column ", field.column, ": ", rule, "\n", picture(field)),
                      {.file = place(name_, field.line), .hint = std::string(hint)});
  }

  // The table, or the line of a route, up to the field.
  std::string picture(const Field& field) const {
    if (!in_route_)
      return format_grid_with(schedule_, schedule_.rank_count() - 1, marked_word(field));
    std::vector<std::string> cells;
    for (const Field& cell : route_) {
      if (cell.column > route_fields + 1) break;
      const bool marked = cell.column == field.column;
      cells.push_back(marked ? text(">", marked_word(cell), "<") : marked_word(cell));
    }
    return "  " + join(cells, ",");
  }

  FieldReader fields_;
  std::string_view name_;
  Schedule schedule_;
  bool in_route_ = false;
  std::vector<Field> route_;  // the fields of the current route line
};

// The field of a cell of the table.
Field field_of(std::string_view text, const GridCell& cell) {
  FieldReader fields(text);
  Field field;
  int rank = -1;
  for (std::size_t index = 0; fields.next(&field);) {
    if (field.column == 1) {
      ++rank;
      index = 0;
    }
    if (field.text.empty()) continue;
    if (rank == cell.rank && index == cell.index) break;
    ++index;
  }
  return field;
}

// Each stage's rank: the one with most of its actions, the first of several. So an action that is
// on a wrong rank does not move its stage there.
void find_ranks(Schedule* schedule) {
  std::vector<int> most(static_cast<std::size_t>(schedule->stages), 0);
  schedule->rank_of_stage.assign(most.size(), -1);
  for (int rank = 0; rank < schedule->rank_count(); ++rank) {
    std::map<int, int> actions;  // by stage
    for (const Action& action : schedule->ranks[static_cast<std::size_t>(rank)]) {
      ++actions[action.stage];
      if (action.kind == Kind::OverlapForwardBackward) ++actions[action.partner_stage];
    }
    for (const auto& [stage, count] : actions) {
      const auto at = static_cast<std::size_t>(stage);
      if (count <= most[at]) continue;
      most[at] = count;
      schedule->rank_of_stage[at] = rank;
    }
  }
}

// Fills in what follows from the actions: counts, the ranks of stages, and PyTorch's routes.
void derive(Schedule* schedule) {
  bool transfers = false;
  for (const auto& row : schedule->ranks) {
    for (const Action& action : row) {
      const int stage = std::max(action.stage, action.partner_stage);
      const int micro_batch = std::max(action.micro_batch, action.partner_micro_batch);
      schedule->stages = std::max(schedule->stages, stage + 1);
      schedule->micro_batches = std::max(schedule->micro_batches, micro_batch + 1);
      transfers = transfers || is_send(action.kind) || is_receive(action.kind);
    }
  }
  find_ranks(schedule);
  if (transfers && schedule->routes.empty()) schedule->routes = main_lane(schedule->stages);
}

}  // namespace

std::string to_csv(const Schedule& schedule) {
  std::string out;
  for (const auto& actions : schedule.ranks) {
    std::vector<std::string> cells;
    for (const Action& action : actions) cells.push_back(to_string(action));
    // Readers such as Python's csv module skip a blank line, so an empty rank is a quoted empty
    // cell.
    out += (cells.empty() ? "\"\"" : join(cells, ",")) + "\n";
  }
  for (const Route& route : schedule.routes) {
    out += text(route_mark, ",", route.from_stage, ",", route.to_stage, ",",
                route.skip ? "skip" : "main", ",", quoted(route.name), "\n");
  }
  return out;
}

Schedule parse_csv(std::string_view text, std::string_view name) {
  text = without_byte_order_mark(text, std::string(name));
  Schedule schedule = TableReader(text, name).read();
  derive(&schedule);
  if (schedule.stages == 0) {
    throw FormatError(
        "the schedule table holds no action",
        {.file = std::string(name), .hint = "Expected one row for each rank, such as '0F0,0B0'."});
  }
  return schedule;
}

Schedule read_csv(std::string_view text, std::string_view name, TableUse use) {
  Schedule schedule;
  try {
    schedule = parse_csv(text, name);
    use == TableUse::Pipeline ? validate_for_pipelines(schedule) : validate(schedule);
  } catch (const FormatError& error) {
    throw UsageError(error.std::runtime_error::what(), error.where());
  } catch (const TableError& error) {
    const std::string& hint = error.where().hint;
    if (!error.cell())
      throw UsageError(error.description(), {.file = std::string(name), .hint = hint});
    const Field field = field_of(without_byte_order_mark(text, schedule.name), *error.cell());
    throw UsageError(trestle::text("column ", field.column, ": ", error.description()),
                     {.file = place(name, field.line), .hint = hint});
  }
  return schedule;
}

}  // namespace trestle::schedule
