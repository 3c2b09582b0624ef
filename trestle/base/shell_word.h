#pragma once

#include <string>
#include <string_view>

namespace trestle {

// As a shell reads it back: as it is where it is plain, else in single quotes. For commands that a
// person copies.
std::string shell_word(std::string_view word);

}  // namespace trestle
