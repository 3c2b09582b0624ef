#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trestle::tokens {

// The text with U+FFFD in place of invalid bytes, exactly as Python's decode(errors="replace") has
// it: one for each longest begin of a character that never completes, and one for each other
// invalid byte. A valid text is returned as it is; another one is written to `storage`, and the
// result is valid as long as that.
std::string_view valid_utf8(std::string_view text, std::string* storage);

// The number of bytes at the end of a text that begin a character but do not complete it: 0 to 3.
std::size_t unfinished_utf8(std::string_view text);

}  // namespace trestle::tokens
