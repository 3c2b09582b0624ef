#pragma once

#include <filesystem>

// A folder that is replaced as one: whenever the machine stops, one whole folder is there, the older
// or the newer. No torch in here. Internal to trestle/checkpoint.
//
//     begin_folder(folder);        // "<folder>.tmp" is there, empty
//     ...                          // files are written into it
//     swap_in(folder);             // it is "<folder>"; what stood there is gone
//
// Killed in between, "<folder>.tmp" stays behind: half of the newer one, or all of the older. Nobody
// reads it, and the next begin_folder() removes it.
namespace trestle::checkpoint {

// Where the newer one is made.
std::filesystem::path fresh_folder(const std::filesystem::path& folder);

// Throws UsageError where `folder` is something that is not empty and no checkpoint, FileError where
// the system refuses.
void begin_folder(const std::filesystem::path& folder);

// In one system call. On a file system that cannot exchange two names, the older folder is renamed to
// "<folder>.old" first: killed just then, that is the whole one.
void swap_in(const std::filesystem::path& folder);

// After an error, as far as the system lets us: a half-written folder takes room that is missing.
void drop_fresh(const std::filesystem::path& folder) noexcept;

// The folder, or "<folder>.old" where only that is there. Throws FileError where neither is.
std::filesystem::path whole_folder(const std::filesystem::path& folder);

// The names of files must reach the disk as well as the files do.
void flush_folder(const std::filesystem::path& folder);

}  // namespace trestle::checkpoint
