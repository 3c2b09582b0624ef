#include "trestle/base/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>
#include <system_error>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

[[noreturn]] void fail(std::string_view doing, const std::filesystem::path& path, int reason) {
  std::string hint;
  if (reason == ENOSPC || reason == EDQUOT) hint = "Free some space, or choose another folder.";
  if (reason == EFBIG) hint = "The file is larger than this process may write (see ulimit -f).";
  if (reason == EACCES || reason == EPERM || reason == EROFS) {
    hint = "Check who owns the folder and whether it may be written.";
  }
  if (reason == ENOENT) hint = "Check the path: the file or its folder does not exist.";
  throw FileError(
      text("cannot ", doing, " '", path.string(), "': ", std::generic_category().message(reason)),
      {.file = path.string(), .hint = std::move(hint)});
}

// Past a file-size limit the kernel sends SIGXFSZ, which ends the process; blocked for this thread
// the write fails with EFBIG instead, and can be reported like a full disk.
class BlockFileSizeSignal {
 public:
  BlockFileSizeSignal() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~BlockFileSizeSignal() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    const timespec now{};
    if (sigismember(&before_, SIGXFSZ) == 0) sigtimedwait(&set, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BlockFileSizeSignal(const BlockFileSizeSignal&) = delete;
  BlockFileSizeSignal& operator=(const BlockFileSizeSignal&) = delete;

 private:
  sigset_t before_{};
};

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }
  int close() {
    const int result = ::close(number_);
    number_ = -1;
    return result;
  }

 private:
  int number_;
};

// Removes the temporary file unless it was renamed.
class Temporary {
 public:
  explicit Temporary(std::filesystem::path path) : path_(std::move(path)) {}
  ~Temporary() {
    if (!renamed_) ::unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const std::filesystem::path& path() const { return path_; }
  void renamed() { renamed_ = true; }

 private:
  std::filesystem::path path_;
  bool renamed_ = false;
};

void write_all(int descriptor, std::string_view content, const std::filesystem::path& path) {
  while (!content.empty()) {
    const ssize_t count = ::write(descriptor, content.data(), content.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      fail("write", path, errno);
    }
    content.remove_prefix(static_cast<std::size_t>(count));
  }
}

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  static std::atomic<unsigned> counter{0};  // two threads may write the same file at once
  std::filesystem::path name = path;
  name += text(".", ::getpid(), ".", counter.fetch_add(1), ".tmp");
  return name;
}

bool is_special(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

// The rename itself must reach the disk too, or a power cut may bring the old name back.
void flush_folder(const std::filesystem::path& path) {
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.number() >= 0) ::fsync(opened.number());
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.number() < 0) fail("open", path, errno);
  std::string content;
  std::array<char, 1 << 16> buffer{};
  while (true) {
    const ssize_t count = ::read(file.number(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("read", path, errno);
    if (count == 0) return content;
    content.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  const BlockFileSizeSignal guard;
  if (is_special(path)) {  // a device or a pipe (/dev/stdout) has no old content to protect
    Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (file.number() < 0) fail("open", path, errno);
    write_all(file.number(), content, path);
    return;
  }
  Temporary temporary(temporary_name(path));
  Descriptor file(::open(temporary.path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.number() < 0) fail("write", path, errno);
  write_all(file.number(), content, path);
  if (::fsync(file.number()) != 0) fail("flush", path, errno);
  if (file.close() != 0) fail("close", path, errno);
  if (::rename(temporary.path().c_str(), path.c_str()) != 0) fail("replace", path, errno);
  temporary.renamed();
  flush_folder(path);
}

void write_file(const std::filesystem::path& path,
                const std::function<void(std::ostream&)>& writer) {
  std::ostringstream out;
  writer(out);
  write_file(path, std::string_view(out.view()));
}

}  // namespace trestle
