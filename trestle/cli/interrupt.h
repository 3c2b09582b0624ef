#pragma once

#include <cstdint>

// Handles Ctrl-C, SIGTERM, and SIGHUP unless it is ignored. The exit code is 128 + the signal: 130,
// 143 or 129.
namespace trestle::cli {

// From now on the first signal ends the process at once.
void watch_interrupts();

// From now on the first signal makes interrupted() true, and prints that the training step will be
// finished. A second signal ends the process at once.
void finish_steps_on_interrupt();

// The same with another message, for verbs that do not train.
void stop_on_interrupt(const char* message);

// For work with `all` parts: call it after each one. Returns false after a signal; the caller then
// cleans up and ends. A second signal ends the process at once. Before the first part is done and
// after the last, the first signal ends the process at once.
bool should_continue(std::int64_t done, std::int64_t all);

// Whether a signal has arrived.
bool interrupted();

// After stop_on_interrupt(): if Ctrl-C has arrived, and no other signal, then it is handled:
// interrupted() is false again, and the next signal is the first one.
void forget_ctrl_c();

// The exit code after a signal.
int interrupted_exit_code();

}  // namespace trestle::cli
