#pragma once

// Ctrl-C and SIGTERM. The exit code is 128 + the signal: 130 or 143.
namespace trestle::app {

// From now on the first SIGINT or SIGTERM ends the process, at once: nothing is lost yet.
void watch_interrupts();

// From now on the first one only sets a mark (and says so on the standard error); the second ends
// the process at once.
void finish_steps_on_interrupt();

// Whether one came.
bool interrupted();

// What the process ends with when one came.
int interrupted_exit_code();

}  // namespace trestle::app
