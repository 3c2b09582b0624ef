#pragma once

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>

// Reads files, and writes them whole or not at all.
namespace trestle {

// The whole content of a file, or of a pipe or device of at most 256 MiB. Throws FileError with the
// path and the reason.
std::string read_file(const std::filesystem::path& path);

// Writes `content` to a temporary file beside `path`, flushes it to the disk, and renames it. On
// any failure (disk full, no permission) it removes the temporary file, leaves the old file at
// `path` unchanged, and throws FileError with the reason.
void write_file(const std::filesystem::path& path, std::string_view content);

// The same for a writer that streams its bytes. They go to the temporary file as they come, so a
// file may be larger than memory.
void write_file(const std::filesystem::path& path,
                const std::function<void(std::ostream&)>& writer);

}  // namespace trestle
