#include "trestle/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>
#include <streambuf>
#include <system_error>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"

namespace trestle {
namespace {

enum class Access { Read, Write };

[[noreturn]] void fail(std::string_view doing, const std::filesystem::path& path, int reason,
                       Access access = Access::Write) {
  std::string hint;
  if (reason == ENOSPC || reason == EDQUOT) hint = "Free some space, or choose another folder.";
  if (reason == EFBIG) hint = "The file is larger than this process may write (see ulimit -f).";
  if (reason == EACCES || reason == EPERM || reason == EROFS) {
    hint = access == Access::Read ? "Check who owns the file and whether it may be read."
                                  : "Check who owns the folder and whether it may be written.";
  }
  if (reason == ENOENT) hint = "Check the path: the file or its folder does not exist.";
  throw FileError(text("cannot ", doing, " it: ", std::generic_category().message(reason)),
                  {.file = path.string(), .hint = std::move(hint)});
}

// Past a file-size limit the kernel sends SIGXFSZ, which would end the process. While it is blocked
// for this thread, the write fails with EFBIG instead.
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

// Writes a file. After each complete block it asks the kernel to start writing to the disk, so that
// the flush at the end has little to wait for. The flush reports disk errors.
class Output {
 public:
  explicit Output(int descriptor) : descriptor_(descriptor) {}

  // Does nothing after a failure.
  void write(std::string_view content) {
    while (error_ == 0 && !content.empty()) {
      const ssize_t count = ::write(descriptor_, content.data(), std::min(content.size(), block));
      if (count < 0) {
        if (errno != EINTR) error_ = errno;
        continue;
      }
      content.remove_prefix(static_cast<std::size_t>(count));
      waiting_ += static_cast<std::size_t>(count);
      if (waiting_ >= block) begin();
    }
  }

  int error() const { return error_; }

 private:
  static constexpr std::size_t block = std::size_t{8} << 20;

  void begin() {
    ::sync_file_range(descriptor_, begun_, static_cast<off_t>(waiting_), SYNC_FILE_RANGE_WRITE);
    begun_ += static_cast<off_t>(waiting_);
    waiting_ = 0;
  }

  int descriptor_;
  int error_ = 0;
  off_t begun_ = 0;
  std::size_t waiting_ = 0;
};

// Buffers small writes. Large ones go to the file directly.
class OutputBuffer : public std::streambuf {
 public:
  explicit OutputBuffer(Output& output) : output_(output), small_(std::size_t{1} << 16) { empty(); }

 protected:
  int_type overflow(int_type next) override {
    if (sync() != 0) return traits_type::eof();
    if (!traits_type::eq_int_type(next, traits_type::eof())) sputc(traits_type::to_char_type(next));
    return traits_type::not_eof(next);
  }

  std::streamsize xsputn(const char* bytes, std::streamsize count) override {
    if (count > epptr() - pptr()) {
      if (sync() != 0) return 0;
      if (count >= epptr() - pptr()) {
        output_.write({bytes, static_cast<std::size_t>(count)});
        return output_.error() == 0 ? count : 0;
      }
    }
    std::memcpy(pptr(), bytes, static_cast<std::size_t>(count));
    pbump(static_cast<int>(count));
    return count;
  }

  int sync() override {
    output_.write({pbase(), static_cast<std::size_t>(pptr() - pbase())});
    empty();
    return output_.error() == 0 ? 0 : -1;
  }

 private:
  void empty() { setp(small_.data(), small_.data() + small_.size()); }

  Output& output_;
  std::vector<char> small_;
};

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

// The rename must reach the disk too, or a power cut may bring the old file back.
void flush_folder(const std::filesystem::path& path) {
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.number() >= 0) ::fsync(opened.number());
}

void replace(const std::filesystem::path& path, const std::function<void(Output&)>& write) {
  const BlockFileSizeSignal guard;
  Temporary temporary(temporary_name(path));
  Descriptor file(::open(temporary.path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.number() < 0) fail("write", path, errno);
  Output output(file.number());
  write(output);
  if (output.error() != 0) fail("write", path, output.error());
  if (::fsync(file.number()) != 0) fail("flush", path, errno);
  if (file.close() != 0) fail("close", path, errno);
  if (::rename(temporary.path().c_str(), path.c_str()) != 0) fail("replace", path, errno);
  temporary.renamed();
  flush_folder(path);
}

// The bytes that are read at most; 0 = no limit.
struct ReadLimits {
  Bytes most_of_pipe = 0;
  Bytes most_of_file = 0;
};

[[noreturn]] void refuse_long(const std::filesystem::path& path, const std::string& what,
                              const char* hint) {
  throw FileError(what, {.file = path.string(), .hint = hint});
}

// A device may have no end, or wait for ever.
void refuse_device(int descriptor, const struct stat& status, const std::filesystem::path& path) {
  struct stat null = {};
  const bool is_null = ::stat("/dev/null", &null) == 0 && null.st_rdev == status.st_rdev;
  if (S_ISBLK(status.st_mode) || (S_ISCHR(status.st_mode) && !is_null && ::isatty(descriptor) == 0))
    throw FileError("is a device, not a file",
                    {.file = path.string(), .hint = "Write the content to a file."});
}

std::string read_whole(const std::filesystem::path& path, const ReadLimits& limits) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.number() < 0) fail("open", path, errno, Access::Read);
  struct stat status = {};
  if (::fstat(file.number(), &status) != 0) fail("read", path, errno, Access::Read);
  refuse_device(file.number(), status, path);
  const bool has_size = S_ISREG(status.st_mode);
  const Bytes most = has_size ? limits.most_of_file : limits.most_of_pipe;
  if (has_size && most > 0 && status.st_size > most)
    refuse_long(path,
                text("it has ", format_bytes(status.st_size), ", and text has at most ",
                     format_bytes(most)),
                "Check that it is the right file.");
  std::string content;
  std::array<char, 1 << 16> buffer{};
  while (true) {
    const ssize_t count = ::read(file.number(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("read", path, errno, Access::Read);
    if (count == 0) return content;
    content.append(buffer.data(), static_cast<std::size_t>(count));
    if (most > 0 && static_cast<Bytes>(content.size()) > most)
      refuse_long(path, text("it has no end: ", format_bytes(most), " were read, and more follows"),
                  "It is a pipe, or it grows. Larger contents must be in a file.");
  }
}

// A device or a pipe (/dev/stdout) has no old content to keep.
void write_special(const std::filesystem::path& path, std::string_view content) {
  const BlockFileSizeSignal guard;
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.number() < 0) fail("open", path, errno);
  Output output(file.number());
  output.write(content);
  if (output.error() != 0) fail("write", path, output.error());
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  constexpr Bytes most_without_a_size = Bytes{256} << 20;
  return read_whole(path, {.most_of_pipe = most_without_a_size});
}

std::string read_text_file(const std::filesystem::path& path) {
  return read_whole(path, {.most_of_pipe = most_text_bytes, .most_of_file = most_text_bytes});
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  if (is_special(path)) return write_special(path, content);
  replace(path, [content](Output& output) { output.write(content); });
}

void write_file(const std::filesystem::path& path,
                const std::function<void(std::ostream&)>& writer) {
  if (is_special(path)) {
    std::ostringstream out;
    writer(out);
    return write_special(path, out.view());
  }
  replace(path, [&writer](Output& output) {
    OutputBuffer buffer(output);
    std::ostream out(&buffer);
    writer(out);
    out.flush();
  });
}

}  // namespace trestle
