#include "trestle/cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace trestle::cli {

namespace {

volatile std::sig_atomic_t first_signal = 0;
std::atomic<std::int64_t> first_time = 0;  // milliseconds
constexpr int from_launcher = 1, from_elsewhere = 2;
volatile std::sig_atomic_t senders = 0;       // bits of the two above
volatile std::sig_atomic_t has_launcher = 0;  // the parent is trestle launch or torchrun
const char* volatile message_on_signal = "";

void print_to_stderr(const char* words) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, words, std::strlen(words));
}

std::int64_t milliseconds_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // a signal handler may call it
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

// The default action of a signal does not end the process with pid 1 of a container; _exit() does.
// A launcher reports for all ranks that it stops, so only other signals print a message here.
void end_now(int signal, int from) {
  if (from != from_launcher) print_to_stderr("\ntrestle: stopped\n");
  _exit(128 + signal);
}

int sender_of(const siginfo_t* about) {
  return has_launcher && about->si_pid == getppid() ? from_launcher : from_elsewhere;
}

// When all processes of a job get a signal, a rank gets it twice: directly, and from its launcher,
// which passes it on. The two count as one signal. So does the same signal within a short time:
// `timeout` sends it to the process and to its group.
void on_signal(int signal, siginfo_t* about, void*) {
  constexpr std::int64_t together = 300;
  const int from = sender_of(about);
  if (signal == first_signal && milliseconds_now() - first_time < together) {
    senders = senders | from;
    return;
  }
  if ((senders & from) != 0) end_now(signal, from);
  senders = senders | from;
  if (first_signal != 0) return;
  first_signal = signal;
  first_time = milliseconds_now();
  print_to_stderr(message_on_signal);
}

void end_at_once(int signal, siginfo_t* about, void*) { end_now(signal, sender_of(about)); }

void handle_signals(void (*handler)(int, siginfo_t*, void*)) {
  has_launcher = std::getenv("TORCHELASTIC_RUN_ID") != nullptr ? 1 : 0;
  struct sigaction action {};
  action.sa_sigaction = handler;
  // SA_RESTART: a signal must not interrupt writing a file.
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction before {};  // under `nohup` SIGHUP is ignored, and stays ignored
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

}  // namespace

void watch_interrupts() { handle_signals(end_at_once); }

void finish_steps_on_interrupt() {
  stop_on_interrupt("\ntrestle: finishing this step, then saving; a second signal stops at once\n");
}

void stop_on_interrupt(const char* message) {
  message_on_signal = message;
  handle_signals(on_signal);
}

bool should_continue(std::int64_t done, std::int64_t all) {
  if (done == 1) stop_on_interrupt("\ntrestle: stopping, and removing the incomplete data\n");
  if (done == all && !interrupted()) watch_interrupts();
  return !interrupted();
}

bool interrupted() { return first_signal != 0; }

void forget_ctrl_c() {
  if (first_signal != SIGINT) return;
  senders = 0;
  first_signal = 0;
}

int interrupted_exit_code() { return 128 + first_signal; }

}  // namespace trestle::cli
