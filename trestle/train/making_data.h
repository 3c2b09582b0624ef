#pragma once

#include <cstdint>
#include <functional>

namespace trestle::train {

// Called after each synthetic example, with (made, all). False gives up: what was made is removed.
using MakingData = std::function<bool(std::int64_t, std::int64_t)>;

// Throws the StateError of having given up.
[[noreturn]] void throw_stopped_making(std::int64_t made, std::int64_t all);

}  // namespace trestle::train
