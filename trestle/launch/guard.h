#pragma once

#include <sys/types.h>

namespace trestle::launch {

// A process that kills the ranks' process groups where the launcher is gone without having done so
// itself, as by SIGKILL. It waits on a pipe, whose end it sees however the launcher ends.
class Guard {
 public:
  Guard();
  ~Guard();  // without killing anybody
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  void watch(pid_t group) const;

 private:
  pid_t process_ = -1;
  int to_ = -1;
};

}  // namespace trestle::launch
