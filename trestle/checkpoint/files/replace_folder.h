#pragma once

#include <filesystem>

// Replaces a folder atomically: after a crash at any point, one complete folder exists, the old or
// the new one. Torch-free. Internal to trestle/checkpoint.
//
//     begin_folder(folder);        // creates an empty "<folder>.tmp"
//     ...                          // writes files into it
//     swap_in(folder);             // makes it "<folder>" and removes the old one
//
// If the process is killed in between, "<folder>.tmp" remains: an incomplete new folder, or the
// complete old one. It is never read, and the next begin_folder() removes it.
namespace trestle::checkpoint {

// The path at which the new folder is written.
std::filesystem::path fresh_folder(const std::filesystem::path& folder);

// Throws UsageError if `folder` is neither empty nor a checkpoint, FileError if the system rejects
// it.
void begin_folder(const std::filesystem::path& folder);

// Uses one system call. On a file system that cannot exchange two names, the old folder is first
// renamed to "<folder>.old"; if the process is killed then, that is the complete one.
void swap_in(const std::filesystem::path& folder);

// Cleans up after an error, if the system allows it: an incomplete folder takes disk space.
void drop_fresh(const std::filesystem::path& folder) noexcept;

// The folder, or "<folder>.old" if only that exists. Throws FileError if neither does.
std::filesystem::path whole_folder(const std::filesystem::path& folder);

// Flushes the names of files to the disk, as flushing the files does not.
void flush_folder(const std::filesystem::path& folder);

}  // namespace trestle::checkpoint
