#include "trestle/cli/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace trestle::cli {

std::optional<std::string> LineReader::next(std::chrono::milliseconds interval,
                                            const std::function<void()>& while_waiting) {
  while (true) {
    if (const auto end = held_.find('\n'); end != std::string::npos) {
      std::string line = held_.substr(0, end);
      held_.erase(0, end + 1);
      return line;
    }
    if (at_end_) {
      if (held_.empty()) return std::nullopt;
      return std::exchange(held_, {});
    }
    if (while_waiting) {
      pollfd input{.fd = descriptor_, .events = POLLIN, .revents = 0};
      const int ready = poll(&input, 1, static_cast<int>(interval.count()));
      if (ready == 0) while_waiting();
      if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    }
    std::array<char, 4096> bytes{};
    const ssize_t count = read(descriptor_, bytes.data(), bytes.size());
    if (count > 0)
      held_.append(bytes.data(), static_cast<std::size_t>(count));
    else if (count == 0 || errno != EINTR)
      at_end_ = true;
  }
}

}  // namespace trestle::cli
