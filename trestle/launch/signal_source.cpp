#include "trestle/launch/signal_source.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace trestle::launch {

namespace {

constexpr int termination_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr int other_signals[] = {SIGCHLD, SIGTSTP, SIGUSR1, SIGUSR2};

bool is_ignored(int signal) {
  struct sigaction now {};
  sigaction(signal, nullptr, &now);
  return now.sa_handler == SIG_IGN;
}

}  // namespace

bool is_termination_signal(int signal) {
  for (const int other : termination_signals)
    if (signal == other) return true;
  return false;
}

SignalSource::SignalSource() {
  // If SIGCHLD is ignored, the exit status of a child is lost.
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &standard, &child_before_);
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignored, &pipe_before_);
  sigset_t set;
  sigemptyset(&set);
  // A signal that is ignored (SIGHUP under `nohup`) stays ignored: if blocked, it would be queued.
  for (const int signal : termination_signals)
    if (!is_ignored(signal)) sigaddset(&set, signal);
  for (const int signal : other_signals)
    if (signal == SIGCHLD || !is_ignored(signal)) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, &mask_before_);
  try {
    descriptor_ =
        move_above_stdio(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC), "signals to watch");
  } catch (...) {
    restore();
    throw;
  }
}

void SignalSource::restore() const {
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  sigaction(SIGCHLD, &child_before_, nullptr);
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

SignalSource::~SignalSource() { restore(); }

std::optional<int> SignalSource::next() {
  signalfd_siginfo info{};
  if (read(descriptor(), &info, sizeof info) != static_cast<ssize_t>(sizeof info))
    return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

void SignalSource::restore_for_exec() const {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (const int signal : termination_signals)
    if (!is_ignored(signal)) sigaction(signal, &standard, nullptr);
  // The signals that trestle itself ignores.
  sigaction(SIGPIPE, &standard, nullptr);
  sigaction(SIGXFSZ, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace trestle::launch
