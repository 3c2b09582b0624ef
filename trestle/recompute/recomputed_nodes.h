#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace trestle::recompute {

// Numbers of autograd's nodes, [first, last).
struct NodeRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;

  bool has(std::uint64_t node) const { return node >= first && node < last; }
};

// Collects the nodes whose saved tensors are recomputed: those of all checkpointed functions that
// the calling thread runs while it lives. Each backward of such a node recomputes its function.
class RecomputedNodes {
 public:
  RecomputedNodes();
  ~RecomputedNodes();
  RecomputedNodes(const RecomputedNodes&) = delete;
  RecomputedNodes& operator=(const RecomputedNodes&) = delete;

  std::vector<NodeRange> take() { return std::move(ranges_); }

  // Adds to the calling thread's innermost object, if there is one.
  static void add(const NodeRange& range);

 private:
  RecomputedNodes* around_;
  std::vector<NodeRange> ranges_;
};

}  // namespace trestle::recompute
