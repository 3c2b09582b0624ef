#pragma once

#include <filesystem>
#include <optional>

// A lock file that one process at a time can hold.
//
//   const std::optional<FileLock> lock = FileLock::try_lock(folder / ".lock");
//   if (!lock) throw StateError("another process is writing here");
namespace trestle {

// The lock is held until the object is destroyed. The kernel releases it when the process ends for
// any reason, so a leftover file is harmless; the holder may remove it. On a file system without
// locks it is always granted.
class FileLock {
 public:
  // Creates the file if necessary. Nothing if another process, or another lock of this process,
  // holds it. Throws FileError where the system refuses.
  static std::optional<FileLock> try_lock(const std::filesystem::path& path);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace trestle
