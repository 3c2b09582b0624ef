#include "trestle/recompute/recomputing.h"

namespace trestle::recompute {
namespace {

thread_local int depth = 0;

}  // namespace

bool recomputing() { return depth > 0; }

RecomputingScope::RecomputingScope() { ++depth; }
RecomputingScope::~RecomputingScope() { --depth; }

}  // namespace trestle::recompute
