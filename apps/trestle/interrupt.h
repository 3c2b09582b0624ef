#pragma once

#include <cstdint>

// Ctrl-C, SIGTERM, and SIGHUP where it is not ignored. The exit code is 128 + the signal: 130, 143
// or 129.
namespace trestle::app {

// From now on the first of them ends the process, at once: nothing is lost yet.
void watch_interrupts();

// From now on the first one only sets a mark (and says so on the standard error); the second ends
// the process at once.
void finish_steps_on_interrupt();

// The same with other words than those of a training, for a verb that ends in another way.
void stop_on_interrupt(const char* words);

// Called after each part of a work that can be given up: false after a signal, for the caller to
// clean up and end. A second signal ends the process at once. Before the first part is done, and
// after the last, the first signal does.
bool goes_on(std::int64_t done, std::int64_t all);

// Whether one came.
bool interrupted();

// What the process ends with when one came.
int interrupted_exit_code();

}  // namespace trestle::app
