#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Inside of the readers. Not installed.
namespace trestle::data {

bool is_gzip(std::string_view bytes);

// The first `most` bytes of what a gzip file (RFC 1952) holds, or all if there are fewer. Throws
// FormatError, naming the file, where it is damaged or cut short before that.
std::string gunzip(std::string_view bytes, std::string_view name, std::size_t most);

}  // namespace trestle::data
