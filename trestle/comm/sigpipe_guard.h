#pragma once

#include <signal.h>

namespace trestle::comm {

// Blocks SIGPIPE in this thread while it lives: a write to a connection that the peer has closed
// then fails with EPIPE. Gloo and libtorch's store rely on a process that ignores SIGPIPE, as
// Python does; otherwise the signal ends the process without an error message. Threads started
// meanwhile inherit the mask for good. The process's signal handlers and its other threads are
// unaffected.
class SigpipeGuard {
 public:
  SigpipeGuard();
  ~SigpipeGuard();
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  bool was_blocked_ = false, was_pending_ = false;
};

}  // namespace trestle::comm
