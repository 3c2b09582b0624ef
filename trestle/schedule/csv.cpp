#include "trestle/schedule/csv.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/routes.h"

namespace trestle::schedule {
namespace {

constexpr std::string_view route_mark = "#route";

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
};
using Record = std::vector<Field>;

// "mine.csv:3", for messages.
std::string place(std::string_view name, std::size_t line) { return text(name, ":", line); }

// RFC 4180 with some leniency: a lone "\n" ends a record as "\r\n" does, and a spreadsheet's byte
// order mark and blank lines are skipped. A rank without actions is a line of "".
class RecordReader {
 public:
  RecordReader(std::string_view text, std::string_view name) : rest_(text), name_(name) {
    constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
    if (rest_.starts_with(byte_order_mark)) rest_.remove_prefix(byte_order_mark.size());
  }

  bool next(Record* record) {
    skip_blank_lines();
    if (rest_.empty()) return false;
    record->clear();
    while (true) {
      record->push_back(field());
      if (rest_.empty()) return true;
      const char separator = rest_.front();
      rest_.remove_prefix(1);
      if (separator == '\n') {
        ++line_;
        return true;
      }
    }
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

  Field field() {
    if (!rest_.empty() && rest_.front() == '"') return quoted_field();
    const std::size_t end = std::min(rest_.find_first_of(",\n"), rest_.size());
    Field out{trim(rest_.substr(0, end)), line_};
    rest_.remove_prefix(end);
    return out;
  }

  Field quoted_field() {
    Field out{"", line_};
    rest_.remove_prefix(1);
    while (true) {
      const std::size_t end = rest_.find('"');
      if (end == std::string_view::npos) {
        throw FormatError("a quoted field has no closing quote", {.file = place(name_, out.line)});
      }
      out.text += rest_.substr(0, end);
      rest_.remove_prefix(end + 1);
      if (rest_.empty() || rest_.front() != '"') break;
      out.text += '"';
      rest_.remove_prefix(1);
    }
    line_ += static_cast<std::size_t>(std::count(out.text.begin(), out.text.end(), '\n'));
    if (!rest_.empty() && rest_.front() == '\r') rest_.remove_prefix(1);
    if (!rest_.empty() && rest_.front() != ',' && rest_.front() != '\n') {
      throw FormatError("text follows a closing quote",
                        {.file = place(name_, out.line), .hint = "Put a comma between fields."});
    }
    return out;
  }

  std::string_view rest_;
  std::string_view name_;
  std::size_t line_ = 1;
};

int stage_number(const Field& field, std::string_view name) {
  std::int16_t number = 0;
  const char* end = field.text.data() + field.text.size();
  const auto [rest, failure] = std::from_chars(field.text.data(), end, number);
  if (failure != std::errc{} || rest != end || number < 0 ||
      number == std::numeric_limits<std::int16_t>::max()) {
    throw FormatError(text("'", field.text, "' is not a stage number"),
                      {.file = place(name, field.line)});
  }
  return number;
}

Route parse_route(const Record& record, std::string_view name) {
  if (record.size() != 5 || (record[3].text != "main" && record[3].text != "skip")) {
    throw FormatError("invalid route line", {.file = place(name, record.front().line),
                                             .hint = "Expected '#route,FROM,TO,main|skip,NAME'."});
  }
  return {.from_stage = stage_number(record[1], name),
          .to_stage = stage_number(record[2], name),
          .skip = record[3].text == "skip",
          .name = record[4].text};
}

std::vector<Action> parse_row(const Record& record, std::string_view name) {
  std::vector<Action> actions;
  for (std::size_t column = 0; column < record.size(); ++column) {
    const Field& field = record[column];
    if (field.text.empty()) continue;
    try {
      actions.push_back(parse_action(field.text));
    } catch (const FormatError& error) {
      throw FormatError(text("column ", column + 1, ": ", error.what()),
                        {.file = place(name, field.line)});
    }
  }
  return actions;
}

// Fills in what follows from the actions: counts, the ranks of stages, and PyTorch's routes.
void derive(Schedule* schedule) {
  bool sends = false;
  const auto see = [&](int stage, int micro_batch, int rank) {
    schedule->stages = std::max(schedule->stages, stage + 1);
    schedule->micro_batches = std::max(schedule->micro_batches, micro_batch + 1);
    schedule->rank_of_stage.resize(static_cast<std::size_t>(schedule->stages), -1);
    int& owner = schedule->rank_of_stage[static_cast<std::size_t>(stage)];
    if (owner < 0) owner = rank;
  };
  for (int rank = 0; rank < schedule->rank_count(); ++rank) {
    for (const Action& action : schedule->ranks[static_cast<std::size_t>(rank)]) {
      see(action.stage, action.micro_batch, rank);
      if (action.kind == Kind::OverlapForwardBackward)
        see(action.partner_stage, action.partner_micro_batch, rank);
      sends = sends || is_send(action.kind);
    }
  }
  if (!sends || !schedule->routes.empty()) return;
  schedule->routes = main_lane(schedule->stages);
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
  Schedule schedule;
  schedule.name = name;
  RecordReader reader(text, name);
  Record record;
  while (reader.next(&record)) {
    if (record.front().text == route_mark) {
      schedule.routes.push_back(parse_route(record, name));
    } else if (!schedule.routes.empty()) {
      throw FormatError("a rank's row follows the routes",
                        {.file = place(name, record.front().line),
                         .hint = "Put all ranks first, then the #route lines."});
    } else {
      schedule.ranks.push_back(parse_row(record, name));
    }
  }
  derive(&schedule);
  if (schedule.stages == 0) {
    throw FormatError(
        "the schedule table holds no action",
        {.file = std::string(name), .hint = "Expected one row for each rank, such as '0F0,0B0'."});
  }
  return schedule;
}

}  // namespace trestle::schedule
