#pragma once

#include <signal.h>

namespace trestle::comm {

// While it lives, a write of this thread to a connection that the other end has closed is an error as
// any other. Gloo and libtorch's store count on a process that ignores SIGPIPE, as Python does; in one
// that does not the system would end it without a word. Threads that are started meanwhile keep it so
// for good. How the process handles the signal, and what its other threads do, stays as it is.
class NoBrokenPipe {
 public:
  NoBrokenPipe();
  ~NoBrokenPipe();
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

 private:
  bool was_blocked_ = false, was_pending_ = false;
};

}  // namespace trestle::comm
