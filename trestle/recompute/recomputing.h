#pragma once

namespace trestle::recompute {

// Is the calling thread running a checkpointed function again, for its backward? What such a run has
// done to modules is undone or done with after it; what it gathers from other devices, for example, the
// backward needs right behind it.
//
//   if (!recomputing()) release_weights();
//
// nn::checkpointing() tells the first run from the second, for pipeline stages too.
bool recomputing();

// The calling thread does, while it lives.
class RecomputingScope {
 public:
  RecomputingScope();
  ~RecomputingScope();
  RecomputingScope(const RecomputingScope&) = delete;
  RecomputingScope& operator=(const RecomputingScope&) = delete;
};

}  // namespace trestle::recompute
