#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Not installed.
namespace trestle {

// The number of bytes of the UTF-8 character at `at`; 0 for an invalid one.
std::size_t utf8_length(std::string_view text, std::size_t at);

bool is_utf8(std::string_view text);

// The text of a file behind a byte order mark of UTF-8, which editors write. Throws FormatError,
// with the command that converts it, for one of UTF-16 or UTF-32.
std::string_view without_byte_order_mark(std::string_view content, const std::string& file);

}  // namespace trestle
