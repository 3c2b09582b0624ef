#pragma once

#include <csignal>
#include <optional>

#include "trestle/launch/descriptors.h"

namespace trestle::launch {

// While it lives, signals do not interrupt but are read from a descriptor: those that end a program
// (but for ones that were ignored), SIGCHLD, SIGTSTP, SIGUSR1, SIGUSR2. SIGPIPE is ignored.
class SignalSource {
 public:
  SignalSource();
  ~SignalSource();
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;

  int descriptor() const { return descriptor_.get(); }
  // The next one that came; does not wait.
  std::optional<int> next();

  // For a process that was forked meanwhile, before it becomes another program: what was ignored
  // before still is, the rest is as at the start of a program. Safe behind fork().
  void give_back() const;

 private:
  void restore() const;

  Descriptor descriptor_;
  sigset_t mask_before_{};
  struct sigaction pipe_before_ {};
  struct sigaction child_before_ {};
};

// Whether a program that gets it is to end.
bool ends_programs(int signal);

}  // namespace trestle::launch
