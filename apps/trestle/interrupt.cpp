#include "apps/trestle/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <cstring>

namespace trestle::app {

namespace {

volatile std::sig_atomic_t came = 0;  // the signal's number

void say(const char* words) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, words, std::strlen(words));
}

// Not left to the system's own way: it does not end a process that is number 1 of a container.
void end_now(int signal) {
  say("\ntrestle: stopped\n");
  _exit(128 + signal);
}

void on_signal(int signal) {
  if (came != 0) end_now(signal);
  came = signal;
  say("\ntrestle: finishing this step, then saving; once more to stop at once\n");
}

void handle_signals(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // files that are being written are written to their end
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

void watch_interrupts() { handle_signals(end_now); }

void finish_steps_on_interrupt() { handle_signals(on_signal); }

bool interrupted() { return came != 0; }

int interrupted_exit_code() { return 128 + came; }

}  // namespace trestle::app
