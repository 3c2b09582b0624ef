#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Internal to the readers.
namespace trestle::data {

bool is_gzip(std::string_view bytes);

// Unpacks the first `most` bytes of a gzip file (RFC 1952), or all if there are fewer. Throws
// FormatError with the file's name if it is damaged or cut short before that.
std::string gunzip(std::string_view bytes, std::string_view name, std::size_t most);

// Packs bytes as a gzip file without a name and a time: the same bytes always give the same file.
std::string gzip(std::string_view bytes);

}  // namespace trestle::data
