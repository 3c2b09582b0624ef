#include "trestle/launch/exit_status.h"

#include <cstring>

#include "trestle/base/text.h"

namespace trestle::launch {

std::string signal_name(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name == nullptr ? text(signal) : text(signal, " (SIG", name, ")");
}

std::string describe(const ExitStatus& status) {
  if (status.signal == 0) return text("exited with code ", status.code);
  return text("was killed by signal ", signal_name(status.signal));
}

std::string describe_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t few = 4;
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < ranks.size();) {
    std::size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin >= few) {
      parts.push_back(text(ranks[begin], " to ", ranks[end - 1]));
      begin = end;
    }
    for (; begin < end; ++begin) parts.push_back(text(ranks[begin]));
  }
  return text(ranks.size() == 1 ? "rank " : "ranks ", join(parts, ", "));
}

}  // namespace trestle::launch
