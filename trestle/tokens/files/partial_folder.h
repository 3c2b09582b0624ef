#pragma once

#include <filesystem>
#include <optional>

#include "trestle/base/file_lock.h"
#include "trestle/base/overwrite.h"

// A folder that is written whole or not at all. Not installed.
namespace trestle::tokens {

// Removes what killed processes have left beside `out`: their partial folders, and the old content
// of an `out` that they had replaced. A process that still writes holds a lock, and keeps its own.
// If one was killed between moving the old content away and its own into place, the old content
// comes back. Does nothing on a file system without locks.
void clean_up_after_killed(const std::filesystem::path& out);

// A folder that becomes `out` at the end: "plays.4711.partial" beside "plays". Its name has the
// process's id, because another process may write the same `out`.
class PartialFolder {
 public:
  explicit PartialFolder(std::filesystem::path out);
  ~PartialFolder();  // removes it unless it became `out`
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // The old folder is removed only after the new one has its place. Throws UsageError for Refuse
  // and a folder with content, which another process may have written meanwhile; FileError.
  void finish(Overwrite overwrite);

 private:
  std::filesystem::path out_, path_;
  std::optional<FileLock> lock_;
};

}  // namespace trestle::tokens
