#pragma once

namespace trestle::recompute {

// Puts an engine in front of libtorch's autograd engine, for the whole process and for good: it hands
// every backward on to the engine that was there before (libtorch's own, or Python's), and says who
// keeps the tensors that autograd saves in a thread that runs a checkpointed function. Elsewhere nothing
// changes.
//
// The first nn::checkpoint() installs it. A program whose threads are already running operators by
// then calls this before it starts them; later calls do nothing.
void install();

}  // namespace trestle::recompute
