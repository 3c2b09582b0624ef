#pragma once

#include <chrono>
#include <string_view>

namespace trestle {

// "10s", "500 ms", "2min", "1.5 h". Throws UsageError on any other text, also on a number without a
// unit.
std::chrono::milliseconds parse_duration(std::string_view words);

}  // namespace trestle
