#pragma once

#include <cstdint>

// Internal to trestle/models.
namespace trestle::models {

// Larger sizes in a file are mistakes. The limits keep a model's number of parameters within 64
// bits.
inline constexpr std::int64_t most_tokens = std::int64_t{1} << 31;
inline constexpr std::int64_t most_width = std::int64_t{1} << 20;  // and heads, and head_size
inline constexpr std::int64_t most_mlp = std::int64_t{1} << 22;    // and heads x head_size
inline constexpr std::int64_t most_layers = std::int64_t{1} << 14;

}  // namespace trestle::models
