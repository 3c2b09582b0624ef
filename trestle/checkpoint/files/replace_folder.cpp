#include "trestle/checkpoint/files/replace_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/files/checkpoint_index.h"
#include "trestle/checkpoint/files/foreign/foreign_folder.h"
#include "trestle/checkpoint/files/is_checkpoint.h"
#include "trestle/checkpoint/files/train_state.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;

// Converts "runs/a/last/" to "runs/a/last" first, so that the result is not inside the folder.
fs::path beside(const fs::path& folder, const char* ending) {
  return (folder.has_filename() ? folder : folder.parent_path()).string() + ending;
}

void rename_folder(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    throw FileError(text("cannot be renamed to ", to.string(), ": ", std::strerror(errno)),
                    {.file = from.string()});
}

bool has_index(const fs::path& folder) {
  std::error_code none;
  return fs::is_regular_file(folder / index_name, none) ||
         fs::is_regular_file(folder / state_name, none);
}

}  // namespace

fs::path fresh_folder(const fs::path& folder) { return beside(folder, ".tmp"); }

void begin_folder(const fs::path& folder) {
  std::error_code none;
  if (fs::exists(folder) && !has_index(folder) &&
      !(fs::is_directory(folder) && fs::is_empty(folder, none)))
    throw UsageError(
        text(folder.string(), ": exists already and is not a checkpoint, so it is not replaced"),
        {.hint = "Give the checkpoint its own folder."});
  fs::remove_all(fresh_folder(folder));
  fs::create_directories(fresh_folder(folder));
}

void swap_in(const fs::path& folder) {
  const fs::path fresh = fresh_folder(folder), old = beside(folder, ".old");
  const fs::path target = beside(folder, "");
  if (!fs::exists(target)) {
    rename_folder(fresh, target);
  } else if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(fresh);
  } else {
    fs::remove_all(old);  // left by a save that was killed at its last step
    // Between these two lines only <folder>.old is complete; whole_folder() handles that.
    rename_folder(target, old);
    rename_folder(fresh, target);
  }
  flush_folder(target.parent_path().empty() ? fs::path(".") : target.parent_path());
  std::error_code ignored;
  fs::remove_all(old, ignored);
}

void drop_fresh(const fs::path& folder) noexcept {
  std::error_code ignored;
  fs::remove_all(fresh_folder(folder), ignored);
}

fs::path whole_folder(const fs::path& folder) {
  if (fs::exists(folder)) return folder;
  if (const fs::path old = beside(folder, ".old"); fs::exists(old)) return old;
  throw FileError(
      "nothing to resume: there is no such folder",
      {.file = folder.string(), .hint = "It appears at the end of the first epoch, or on Ctrl-C."});
}

bool is_checkpoint(const fs::path& folder) {
  return has_index(folder) || (!fs::exists(folder) && has_index(beside(folder, ".old"))) ||
         find_foreign_folder(folder).has_value();
}

void flush_folder(const fs::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);
  close(descriptor);
}

}  // namespace trestle::checkpoint
