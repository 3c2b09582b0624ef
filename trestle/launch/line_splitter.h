#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace trestle::launch {

// Splits a program's output into lines that can be shown after a prefix. A line that is overwritten
// by carriage returns is passed on at most once a second, and in its last form. All control
// sequences but colours are removed.
class LineSplitter {
 public:
  using Clock = std::chrono::steady_clock;
  using Take = std::function<void(std::string_view line)>;  // without the line end

  static constexpr std::size_t longest_line = 65536;  // longer lines are split

  void add(std::string_view bytes, Clock::time_point now, const Take& take);
  // Passes on the last incomplete line when the program has ended.
  void end(const Take& take);

 private:
  void give(const Take& take);
  void drawn_over(Clock::time_point now, const Take& take);

  std::string line_;
  bool returned_ = false;  // the last byte was a carriage return
  Clock::time_point shown_ = {};
};

// Removes control sequences that move the cursor or erase; keeps colours.
std::string without_cursor_moves(std::string_view line);

}  // namespace trestle::launch
