#pragma once

#include <cstddef>
#include <string_view>

// Not installed.
namespace trestle {

// The number of bytes of the UTF-8 character at `at`; 0 for an invalid one.
std::size_t utf8_length(std::string_view text, std::size_t at);

bool is_utf8(std::string_view text);

}  // namespace trestle
