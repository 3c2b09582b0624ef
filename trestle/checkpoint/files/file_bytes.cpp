#include "trestle/checkpoint/files/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::checkpoint {

FileBytes::FileBytes(const std::filesystem::path& path) : name_(path.string()) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none))
    throw FileError("there is no such file", {.file = name_});
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat about {};
  if (descriptor_ < 0 || fstat(descriptor_, &about) != 0) {
    const int reason = errno;
    if (descriptor_ >= 0) close(descriptor_);
    throw FileError(text("cannot be read: ", std::strerror(reason)), {.file = name_});
  }
  size_ = static_cast<std::uint64_t>(about.st_size);
}

FileBytes::FileBytes(std::string name, std::string bytes)
    : name_(std::move(name)), bytes_(std::move(bytes)), size_(bytes_.size()) {}

FileBytes::~FileBytes() {
  if (descriptor_ >= 0) close(descriptor_);
}

void FileBytes::read(std::uint64_t begin, void* into, std::uint64_t bytes) const {
  if (begin > size_ || bytes > size_ - begin)
    throw FormatError(
        text("is cut short: ", bytes, " bytes from ", begin, " on are needed, but it has ", size_),
        {.file = name_});
  auto* to = static_cast<char*>(into);
  if (descriptor_ < 0) {
    if (bytes > 0) std::memcpy(to, bytes_.data() + begin, bytes);
    return;
  }
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_, to, bytes, static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(text("cannot be read: ", std::strerror(errno)), {.file = name_});
    if (got == 0)
      throw FileError("could not be read to its end: it became shorter", {.file = name_});
    begin += static_cast<std::uint64_t>(got);
    to += got;
    bytes -= static_cast<std::uint64_t>(got);
  }
}

std::string FileBytes::read(std::uint64_t begin, std::uint64_t bytes) const {
  if (bytes > size_) read(begin, nullptr, bytes);  // throws before anything is allocated
  std::string out(static_cast<std::size_t>(bytes), '\0');
  read(begin, out.data(), bytes);
  return out;
}

std::uint32_t FileBytes::crc32(std::uint64_t begin, std::uint64_t bytes) const {
  constexpr std::uint64_t at_once = 1 << 20;
  std::vector<char> buffer(static_cast<std::size_t>(std::min(bytes, at_once)));
  uLong sum = ::crc32(0, nullptr, 0);
  while (bytes > 0) {
    const std::uint64_t count = std::min(bytes, at_once);
    read(begin, buffer.data(), count);
    sum = ::crc32(sum, reinterpret_cast<const Bytef*>(buffer.data()), static_cast<uInt>(count));
    begin += count;
    bytes -= count;
  }
  return static_cast<std::uint32_t>(sum);
}

}  // namespace trestle::checkpoint
