#pragma once

#include <string>
#include <string_view>

namespace trestle::tokens {

// The PCRE2 pattern that matches what a tokenizer.json's regular expression matches in Hugging
// Face's tokenizers. Those use Oniguruma, whose syntax differs from PCRE2's in places, so only
// what is known to be the same is accepted: literals, classes, groups, look-ahead, repetition, and
// \s \S \p{L} \P{L} \p{N} \P{N} \r \n \t. Throws FormatError, with the place and the file, for
// anything else.
std::string split_syntax(std::string_view pattern, const std::string& file);

}  // namespace trestle::tokens
