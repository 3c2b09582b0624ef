#pragma once

#include <string_view>

namespace trestle::tokens {

// How GPT-2 divides text into words: contractions, letters, numbers, other characters and white
// space, each with the space before it. Radford et al. 2019; the expression is that of its code.
inline constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace trestle::tokens
