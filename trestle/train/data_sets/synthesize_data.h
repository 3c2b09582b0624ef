#pragma once

#include <cstdint>
#include <functional>

namespace trestle::train {

// Called after each synthetic example with (written, total). Returning false stops the synthesis
// and removes what was written.
using SynthesisProgress = std::function<bool(std::int64_t, std::int64_t)>;

// Throws the StateError of a synthesis that was stopped.
[[noreturn]] void throw_synthesis_stopped(std::int64_t written, std::int64_t total);

}  // namespace trestle::train
