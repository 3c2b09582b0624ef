#pragma once

#include <filesystem>
#include <optional>

// A file that one process at a time holds.
//
//   const std::optional<FileLock> lock = FileLock::try_lock(folder / ".lock");
//   if (!lock) throw StateError("somebody else is at work here");
namespace trestle {

// Held until it is destroyed. The kernel lets go of it when the process ends, however it ends, so
// the file that stays behind means nothing; who holds the lock may remove it. Where a file system has no locks it is always granted.
class FileLock {
 public:
  // Makes the file if there is none. Nothing where another process, or another lock of this one,
  // holds it; throws FileError where the system refuses.
  static std::optional<FileLock> try_lock(const std::filesystem::path& path);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace trestle
