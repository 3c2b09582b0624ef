#include "trestle/recompute/recomputed_nodes.h"

#include <utility>

namespace trestle::recompute {
namespace {

thread_local RecomputedNodes* innermost = nullptr;

}  // namespace

RecomputedNodes::RecomputedNodes() : around_(std::exchange(innermost, this)) {}
RecomputedNodes::~RecomputedNodes() { innermost = around_; }

void RecomputedNodes::add(const NodeRange& range) {
  if (innermost) innermost->ranges_.push_back(range);
}

}  // namespace trestle::recompute
