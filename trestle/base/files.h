#pragma once

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>

// Files that are either whole or not there.
namespace trestle {

// The whole content of a file, or of a pipe or device of at most 256 MiB. Throws FileError with the path
// and the reason.
std::string read_file(const std::filesystem::path& path);

// Writes `content` to a temporary name beside `path`, flushes it to the disk, and renames it. On
// any failure (disk full, no permission) the temporary file is removed, what stood at `path` before
// is untouched, and FileError says why.
void write_file(const std::filesystem::path& path, std::string_view content);

// The same for writers that produce their bytes bit by bit. These go to the temporary file as they come: a file may be larger
// than memory.
void write_file(const std::filesystem::path& path,
                const std::function<void(std::ostream&)>& writer);

}  // namespace trestle
