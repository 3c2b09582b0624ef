#include "trestle/launch/line_splitter.h"

#include <algorithm>

namespace trestle::launch {

void LineSplitter::give(const Take& take) {
  take(without_cursor_moves(line_));
  line_.clear();
}

void LineSplitter::drawn_over(Clock::time_point now, const Take& take) {
  constexpr auto between = std::chrono::seconds(1);
  const bool due = shown_ == Clock::time_point{} || now - shown_ >= between;
  if (due && !without_cursor_moves(line_).empty()) {
    shown_ = now;
    give(take);
  }
  line_.clear();
}

void LineSplitter::add(std::string_view bytes, Clock::time_point now, const Take& take) {
  while (!bytes.empty()) {
    if (returned_) {
      if (bytes[0] != '\n' && bytes[0] != '\r') drawn_over(now, take);
      returned_ = false;
    }
    const std::size_t room = longest_line - line_.size();
    const std::size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    line_ += bytes.substr(0, std::min(end, room));
    if (end > room) {
      give(take);
      bytes.remove_prefix(room);
      continue;
    }
    bytes.remove_prefix(end);
    if (bytes.empty()) return;
    if (bytes[0] == '\n')
      give(take);
    else
      returned_ = true;
    bytes.remove_prefix(1);
  }
}

void LineSplitter::end(const Take& take) {
  if (!line_.empty()) give(take);
  returned_ = false;
}

std::string without_cursor_moves(std::string_view line) {
  constexpr char escape = '\x1b';
  std::string rest;
  std::size_t at = 0;
  while (at < line.size()) {
    const std::size_t begin = std::min(line.find(escape, at), line.size());
    rest += line.substr(at, begin - at);
    if (begin == line.size()) break;
    at = begin + 1;
    if (at < line.size() && line[at] == '[') {  // ESC [ numbers letter
      const auto is_end = [](char c) { return c >= '@' && c <= '~'; };
      const auto* const found = std::find_if(line.begin() + at + 1, line.end(), is_end);
      at = static_cast<std::size_t>(found - line.begin());
      if (found == line.end()) break;
      ++at;
      if (*found == 'm') rest += line.substr(begin, at - begin);
    } else {
      rest += escape;
    }
  }
  return rest;
}

}  // namespace trestle::launch
