#pragma once

#include <string_view>

// Classes of characters of Unicode 16, as the inside of a PCRE2 class without its brackets. PCRE2
// 10.42 has the tables of Unicode 14, so the letters and numbers added since are listed; with a
// newer PCRE2 the lists change nothing. Hugging Face's tokenizers use Unicode 16.
namespace trestle::tokens {

// \p{L}
std::string_view unicode_letters();

// \p{N}
std::string_view unicode_numbers();

// The 25 characters of White_Space. PCRE2's \s also has U+180E.
std::string_view unicode_white_space();

}  // namespace trestle::tokens
