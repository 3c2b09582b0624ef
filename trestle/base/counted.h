#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trestle {

// counted(1, "step") -> "1 step", counted(1944322, "step") -> "1,944,322 steps",
// counted(2, "batch", "batches") -> "2 batches". Without `many` the plural is the word with an s.
std::string counted(std::int64_t count, std::string_view one, std::string_view many = "");

// The word alone, singular or plural.
std::string plural(std::int64_t count, std::string_view one, std::string_view many = "");

}  // namespace trestle
