#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace trestle::launch {

// Cuts what a program writes into lines that can stand behind a prefix. A line that is drawn over by
// carriage returns is given once a second at most, and as it is when it ends; control sequences but
// for colours are left out.
class LineSplitter {
 public:
  using Clock = std::chrono::steady_clock;
  using Take = std::function<void(std::string_view line)>;  // without its end

  static constexpr std::size_t longest_line = 65536;  // of a longer one pieces are given

  void add(std::string_view bytes, Clock::time_point now, const Take& take);
  // Gives what is left when the program has ended.
  void end(const Take& take);

 private:
  void give(const Take& take);
  void drawn_over(Clock::time_point now, const Take& take);

  std::string line_;
  bool returned_ = false;  // a carriage return came, and it is not known yet what follows
  Clock::time_point shown_ = {};
};

// Without the control sequences that move the cursor or erase; colours stay.
std::string without_cursor_moves(std::string_view line);

}  // namespace trestle::launch
