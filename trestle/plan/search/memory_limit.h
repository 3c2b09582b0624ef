#pragma once

#include <string>

namespace trestle::plan {

// PlanRequest::memory from text such as "24GiB". Throws UsageError, with `flag` in its message, for
// text that is no size, and for less than one byte.
double parse_memory_limit(const std::string& size, const std::string& flag);

// Whether a device's bytes, or what a plan leaves of them, are a limit. A recipe's devices without
// a budget have the largest number.
inline bool has_limit(double bytes) { return bytes < 1e18; }

}  // namespace trestle::plan
