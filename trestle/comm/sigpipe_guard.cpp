#include "trestle/comm/sigpipe_guard.h"

#include <time.h>

namespace trestle::comm {
namespace {

sigset_t broken_pipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool is_pending() {
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

SigpipeGuard::SigpipeGuard() {
  const sigset_t set = broken_pipe();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &set, &before);
  was_blocked_ = sigismember(&before, SIGPIPE) == 1;
  was_pending_ = !was_blocked_ && is_pending();
}

// A SIGPIPE that arrived meanwhile is consumed. It would be delivered when the mask is restored.
SigpipeGuard::~SigpipeGuard() {
  if (was_blocked_) return;
  const sigset_t set = broken_pipe();
  if (!was_pending_ && is_pending()) {
    const timespec at_once = {};
    sigtimedwait(&set, nullptr, &at_once);
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace trestle::comm
