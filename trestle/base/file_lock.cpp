#include "trestle/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {

namespace {

// Whether the open file is still the one with this name.
bool is_still_there(int descriptor, const std::filesystem::path& path) {
  struct stat opened = {}, named = {};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

std::optional<FileLock> FileLock::try_lock(const std::filesystem::path& path) {
  while (true) {
    FileLock lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (lock.descriptor_ < 0)
      throw FileError(text("cannot be opened: ", std::generic_category().message(errno)),
                      {.file = path.string()});
    while (::flock(lock.descriptor_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return std::nullopt;
      if (errno != EINTR) return lock;  // this file system has no locks
    }
    // The holder may have removed the file between open() and flock().
    if (is_still_there(lock.descriptor_, path)) return lock;
  }
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace trestle
