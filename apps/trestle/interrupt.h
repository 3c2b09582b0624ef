#pragma once

// Ctrl-C and SIGTERM as a question that is asked between two steps.
namespace trestle::app {

// From now on the first SIGINT or SIGTERM only sets a mark (and says so on the standard error); the
// second ends the process at once, as if there were no handler.
void watch_interrupts();

// Whether one came.
bool interrupted();

}  // namespace trestle::app
