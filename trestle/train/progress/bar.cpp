#include "trestle/train/progress/bar.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/base/units.h"

namespace trestle::train {

namespace {

constexpr int longest_bar = 20;
constexpr int shortest_bar = 10;
constexpr double seconds_between = 0.05;

std::string cells(std::int64_t done, std::int64_t all, int width, Colours colours) {
  const double share = all > 0 ? static_cast<double>(done) / static_cast<double>(all) : 1;
  const int full = std::clamp(static_cast<int>(share * width), 0, width);
  std::string heavy, light;
  for (int i = 0; i < width; ++i) (i < full ? heavy : light) += i < full ? "━" : "─";
  return painted(colours, "36", heavy) + painted(colours, "2", light);
}

}  // namespace

std::string painted(Colours colours, const char* code, const std::string& words) {
  if (colours == Colours::Off || words.empty()) return words;
  return text("\x1b[", code, "m", words, "\x1b[0m");
}

std::string draw(const BarLine& line, int columns, Colours colours) {
  const std::string count = text(line.done, "/", line.all);
  const std::string label = line.label.empty() ? "" : line.label + " ";
  const int narrowest = columns_of(label) + columns_of(count);
  const int with_bar = narrowest + shortest_bar + 1;
  std::string words;
  int width = 0;
  for (const std::string& word : line.words) {
    if (with_bar + width + columns_of(word) > columns) break;
    words += word;
    width += columns_of(word);
  }
  if (with_bar + width <= columns) {
    const int bar = std::min(longest_bar, columns - narrowest - width - 1);
    return label + cells(line.done, line.all, bar, colours) + " " + count + words;
  }
  for (std::string rest = label; !rest.empty(); rest.erase(0, rest.find(' ') + 1))
    if (columns_of(rest) + columns_of(count) <= columns) return rest + count;
  return cut_to(count, columns);
}

std::string format_time_left(double seconds) {
  const double whole = std::max(1.0, std::round(seconds));
  return whole < 60 ? text(whole, " s") : format_duration(whole);
}

Bar::Bar(std::ostream& out, Colours colours, Columns columns)
    : out_(out), colours_(colours), columns_(std::move(columns)) {}

Bar::~Bar() { erase(); }

void Bar::show(const BarLine& line) {
  const bool again = shown_ && line.label == label_ && line.done != line.all;
  if (again && since_shown_.seconds() < seconds_between) return;
  label_ = line.label;
  // Some terminals wrap a line that fills the last column.
  out_ << "\r\x1b[2K" << draw(line, columns_() - 1, colours_) << std::flush;
  shown_ = true;
  since_shown_ = Stopwatch();
}

void Bar::count(const std::string& label, std::int64_t done, std::int64_t all) {
  if (done >= all) return erase();
  BarLine line{label, done, all};
  if (done <= 1) {
    since_first_part_ = Stopwatch();
  } else {
    const double each = since_first_part_.seconds() / static_cast<double>(done - 1);
    line.words = {"  " + format_time_left(each * static_cast<double>(all - done)) + " left"};
  }
  show(line);
}

void Bar::erase() {
  if (!shown_) return;
  out_ << "\r\x1b[2K" << std::flush;
  shown_ = false;
}

std::function<void(std::int64_t, std::int64_t)> count_bar(const std::string& label) {
  const auto [style, colours] = progress_style_of(STDOUT_FILENO);
  if (style != ProgressStyle::Terminal) return {};
  // A std::function is copied, and a Bar cannot be.
  const auto bar = std::make_shared<Bar>(std::cout, colours, columns_of_terminal(STDOUT_FILENO));
  return [label, bar](std::int64_t done, std::int64_t all) { bar->count(label, done, all); };
}

}  // namespace trestle::train
