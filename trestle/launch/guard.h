#pragma once

#include <sys/types.h>

namespace trestle::launch {

// A process that kills the ranks' process groups if the launcher dies before it can do so, as by
// SIGKILL. It waits for the end of a pipe, which the kernel closes however the launcher ends.
class Guard {
 public:
  Guard();
  ~Guard();  // ends the guard; kills no group
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  void watch(pid_t group) const;

 private:
  pid_t process_ = -1;
  int to_ = -1;
};

}  // namespace trestle::launch
