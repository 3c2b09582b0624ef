#pragma once

namespace trestle::recompute {

// Installs an engine in front of libtorch's autograd engine, for the rest of the process. It
// forwards every backward to the previous engine (libtorch's own, or Python's), and provides the
// saved-tensor hooks in a thread that runs a checkpointed function. Other threads are not affected.
//
// The first nn::checkpoint() installs it. If a program's threads run operators before that, it must
// call install() before it starts them. Later calls do nothing.
void install();

}  // namespace trestle::recompute
