#include "apps/trestle/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

namespace trestle::app {

namespace {

volatile std::sig_atomic_t came = 0;  // the signal's number
constexpr int of_launcher = 1, of_others = 2;
volatile std::sig_atomic_t came_from = 0;     // of these bits
volatile std::sig_atomic_t has_launcher = 0;  // the parent: trestle launch or torchrun
const char* volatile words_on_signal = "";

void say(const char* words) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, words, std::strlen(words));
}

// Not left to the system's own way: it does not end a process that is number 1 of a container.
void end_now(int signal) {
  say("\ntrestle: stopped\n");
  _exit(128 + signal);
}

// Of a rank whose launcher has the signal too, and passes it on, as where all processes of a job are told to end: the
// launcher's word is no second one.
void on_signal(int signal, siginfo_t* about, void*) {
  const int from = has_launcher && about->si_pid == getppid() ? of_launcher : of_others;
  if ((came_from & from) != 0) end_now(signal);
  came_from = came_from | from;
  if (came != 0) return;
  came = signal;
  say(words_on_signal);
}

void end_at_once(int signal, siginfo_t*, void*) { end_now(signal); }

void handle_signals(void (*handler)(int, siginfo_t*, void*)) {
  has_launcher = std::getenv("TORCHELASTIC_RUN_ID") != nullptr ? 1 : 0;
  struct sigaction action {};
  action.sa_sigaction = handler;
  // Files that are being written are written to their end.
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction before {};  // `nohup` has it ignored, and so it stays
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

}  // namespace

void watch_interrupts() { handle_signals(end_at_once); }

void finish_steps_on_interrupt() {
  stop_on_interrupt("\ntrestle: finishing this step, then saving; once more to stop at once\n");
}

void stop_on_interrupt(const char* words) {
  words_on_signal = words;
  handle_signals(on_signal);
}

bool goes_on(std::int64_t done, std::int64_t all) {
  if (done == 1) stop_on_interrupt("\ntrestle: stopping, and removing what was made so far\n");
  if (done == all && !interrupted()) watch_interrupts();
  return !interrupted();
}

bool interrupted() { return came != 0; }

int interrupted_exit_code() { return 128 + came; }

}  // namespace trestle::app
