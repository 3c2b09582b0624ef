#pragma once

#include <string>
#include <string_view>

namespace trestle {

// Quotes a word for a shell: unchanged if it is plain, else in single quotes. Used in commands that
// users copy.
std::string shell_word(std::string_view word);

}  // namespace trestle
