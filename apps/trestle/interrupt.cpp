#include "apps/trestle/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <cstring>

namespace trestle::app {

namespace {

volatile std::sig_atomic_t came = 0;

void on_signal(int signal) {
  came = 1;
  const char* words = "\ntrestle: finishing this step, then saving; once more to stop at once\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, words, std::strlen(words));
  std::signal(signal, SIG_DFL);
}

}  // namespace

void watch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // files that are being written are written to their end
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return came != 0; }

}  // namespace trestle::app
