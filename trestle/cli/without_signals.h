#pragma once

#include <functional>

namespace trestle::cli {

// Runs `work` on a thread of its own, which blocks all signals, and so do the threads that it
// starts, for example those of torch. Signals of the process therefore reach the caller's thread
// alone. A process that starts ranks afterwards needs this: its Launcher reads the signals that its
// own thread blocks, and any other thread that does not block them would take them. Throws what
// `work` throws.
void run_without_signals(const std::function<void()>& work);

}  // namespace trestle::cli
