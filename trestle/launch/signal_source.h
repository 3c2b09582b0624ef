#pragma once

#include <csignal>
#include <optional>

#include "trestle/launch/descriptors.h"

namespace trestle::launch {

// While it lives, signals are blocked and read from a descriptor: termination signals (unless they
// were ignored), SIGCHLD, SIGTSTP, SIGUSR1, SIGUSR2. SIGPIPE is ignored.
class SignalSource {
 public:
  SignalSource();
  ~SignalSource();
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;

  int descriptor() const { return descriptor_.get(); }
  // The next pending signal, if any; does not wait.
  std::optional<int> next();

  // Restores the signals in a forked child before execve(): signals that were ignored before stay
  // ignored, all others get their defaults. Safe between fork() and exec().
  void restore_for_exec() const;

 private:
  void restore() const;

  Descriptor descriptor_;
  sigset_t mask_before_{};
  struct sigaction pipe_before_ {};
  struct sigaction child_before_ {};
};

// SIGINT, SIGTERM, SIGHUP or SIGQUIT.
bool is_termination_signal(int signal);

}  // namespace trestle::launch
