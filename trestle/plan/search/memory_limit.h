#pragma once

#include <string>

namespace trestle::plan {

// PlanRequest::memory from text such as "24GiB". Throws UsageError, with `flag` in its message, for
// text that is no size, and for less than one byte.
double parse_memory_limit(const std::string& size, const std::string& flag);

}  // namespace trestle::plan
