#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>

// Reads files, and writes them whole or not at all.
namespace trestle {

// The whole content of a file, or of a pipe of at most 256 MiB. Throws FileError with the path and
// the reason. A device such as /dev/zero may have no end, so it is an error, except for /dev/null
// and a terminal.
std::string read_file(const std::filesystem::path& path);

// The same for text that a person or a program wrote: recipes, profiles, JSON, tables. Throws
// FileError for more than `most_text_bytes`, before it is in memory.
std::string read_text_file(const std::filesystem::path& path);
inline constexpr std::int64_t most_text_bytes = std::int64_t{64} << 20;

// Writes `content` to a temporary file beside `path`, flushes it to the disk, and renames it. On
// any failure (disk full, no permission) it removes the temporary file, leaves the old file at
// `path` unchanged, and throws FileError with the reason.
void write_file(const std::filesystem::path& path, std::string_view content);

// The same for a writer that streams its bytes. They go to the temporary file as they come, so a
// file may be larger than memory.
void write_file(const std::filesystem::path& path,
                const std::function<void(std::ostream&)>& writer);

}  // namespace trestle
