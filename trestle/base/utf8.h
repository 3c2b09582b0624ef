#pragma once

#include <cstddef>
#include <string_view>

// Inside of the library. Not installed.
namespace trestle {

// How many bytes the UTF-8 character at `at` has; 0 where there is none.
std::size_t utf8_length(std::string_view text, std::size_t at);

bool is_utf8(std::string_view text);

}  // namespace trestle
