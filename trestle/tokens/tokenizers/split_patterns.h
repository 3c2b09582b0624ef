#pragma once

#include <string_view>

// How known tokenizers divide text into words, in the syntax of tokenizer.json.
namespace trestle::tokens {

// GPT-2: contractions, letters, numbers, other characters and white space, each with the space
// before it. Radford et al. 2019; the expression is that of its code.
inline constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Llama-3: numbers have at most three digits.
inline constexpr std::string_view llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// Qwen2: each digit is a word.
inline constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// The pre-tokenizer Digits with individual_digits, the first of SmolLM2's two.
inline constexpr std::string_view digit_pattern = R"(\p{N})";

}  // namespace trestle::tokens
