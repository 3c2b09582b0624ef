#pragma once

#include <cstdint>
#include <string>

namespace trestle::comm {

// Which process a rank is: enough for a rank on the same machine to see that it is gone.
struct ProcessCard {
  std::string host;     // as people know it
  std::string machine;  // the same on one boot of one machine, within one container
  std::int64_t pid = 0;
  std::int64_t started =
      0;                  // in the kernel's ticks: a number that is used again is another process
  std::string once = {};  // differs between any two calls of own_card()

  std::string to_text() const;
  static ProcessCard from_text(const std::string& text);
};

ProcessCard own_card();

// Whether this machine's process has ended, also one that its parent has not taken notice of yet.
bool has_ended(const ProcessCard& card);

}  // namespace trestle::comm
