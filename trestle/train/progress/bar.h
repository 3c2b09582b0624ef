#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "trestle/base/stopwatch.h"
#include "trestle/base/terminal.h"
#include "trestle/train/progress/progress.h"

// A bar that moves in place on a terminal.
namespace trestle::train {

// "epoch 1/6 ━━━━━━━━━━━───────── 14/24  loss 0.412  8 s left"
struct BarLine {
  std::string label;  // "epoch 1/6"
  std::int64_t done = 0, all = 0;
  // The words after the counter, each with its separator ("  loss 0.412"), most important first.
  std::vector<std::string> words = {};
};

// The line in at most `columns` columns. A narrow terminal shortens the bar first, from 20 cells to
// 10. Then words are dropped from the last, then the bar, then the label word by word from its
// first, and at last the line is cut off.
std::string draw(const BarLine& line, int columns, Colours colours = Colours::Off);

// "\x1b[1mwords\x1b[0m", or only the words.
std::string painted(Colours colours, const char* code, const std::string& words);

// "8 s", "1 min 32 s": whole seconds, since an estimate is no better.
std::string format_time_left(double seconds);

class Bar {
 public:
  // `out` must outlive it.
  Bar(std::ostream& out, Colours colours, Columns columns);
  ~Bar();  // leaves nothing on the line
  Bar(const Bar&) = delete;
  Bar& operator=(const Bar&) = delete;

  // Draws the line in the terminal's current width, at most twenty times a second under one label.
  // The last line of a label is always drawn.
  void show(const BarLine& line);
  // Shows `done` of `all` items of equal work, with the estimated time left from the second item
  // on, and removes the line after the last one. The clock starts at the end of the first item, so
  // that the set-up is not counted.
  void count(const std::string& label, std::int64_t done, std::int64_t all);
  void erase();

 private:
  std::ostream& out_;
  Colours colours_;
  Columns columns_;
  std::string label_;
  bool shown_ = false;
  Stopwatch since_shown_, since_first_part_;
};

// A counter for a command that works through a number of items: call it with (done, all) after
// each. On a terminal it shows a bar on the standard output with the estimated time left, and
// removes it at the end or when the function is destroyed. Elsewhere the function is empty.
//
//   const auto count = train::count_bar("drawn");
//   for (int i = 0; i < 100; ++i)
//     if (count) count(i + 1, 100);
std::function<void(std::int64_t, std::int64_t)> count_bar(const std::string& label);

}  // namespace trestle::train
