#pragma once

namespace trestle::recompute {

// Whether the calling thread recomputes a checkpointed function for its backward. The changes that
// a recomputation makes to modules are undone after it. The backward needs gathered data, for
// example unsharded weights, directly after it.
//
//   if (!recomputing()) release_weights();
//
// nn::checkpointing() tells the first run from the recomputation, for pipeline stages too.
bool recomputing();

// Marks the calling thread as recomputing while it lives.
class RecomputingScope {
 public:
  RecomputingScope();
  ~RecomputingScope();
  RecomputingScope(const RecomputingScope&) = delete;
  RecomputingScope& operator=(const RecomputingScope&) = delete;
};

}  // namespace trestle::recompute
