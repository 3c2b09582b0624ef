#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trestle::tokens {

// How often each word of the texts occurs, in the order of the words' bytes. GPT-2's pre-tokenizer
// divides the texts.
std::vector<std::pair<std::string, std::int64_t>> count_words(
    std::span<const std::string_view> texts);

}  // namespace trestle::tokens
