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

// For work that leaves nothing behind when it is given up, called after each part of it: from the
// first to the last the first signal only sets a mark, which this returns false for; the second ends
// the process at once, as the first does before and afterwards.
bool goes_on(std::int64_t done, std::int64_t all);

// Whether one came.
bool interrupted();

// What the process ends with when one came.
int interrupted_exit_code();

}  // namespace trestle::app
