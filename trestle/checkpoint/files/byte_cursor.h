#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "trestle/base/error.h"

// Reads untrusted bytes and never beyond their end. Internal to trestle/checkpoint.
namespace trestle::checkpoint {

class ByteCursor {
 public:
  // `file` is the name for messages; both must outlive the cursor.
  ByteCursor(std::string_view bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  std::size_t position() const { return at_; }
  std::size_t left() const { return bytes_.size() - at_; }

  // Each throws FormatError if there are too few bytes left.
  std::string_view take(std::uint64_t count) {
    if (count > left())
      throw FormatError("cannot trust the tensors in this file: cut short", {.file = file_});
    const std::string_view bytes = bytes_.substr(at_, static_cast<std::size_t>(count));
    at_ += bytes.size();
    return bytes;
  }
  int byte() { return static_cast<unsigned char>(take(1)[0]); }
  // At most 8 bytes.
  std::uint64_t little_endian(std::size_t count) {
    std::uint64_t value = 0;
    const std::string_view bytes = take(count);
    for (std::size_t i = count; i > 0; --i)
      value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
    return value;
  }
  // Up to the next newline, which is consumed too.
  std::string_view line() {
    const std::size_t end = bytes_.find('\n', at_);
    const std::string_view bytes = take(end == std::string_view::npos ? left() + 1 : end - at_);
    take(1);
    return bytes;
  }

 private:
  std::string_view bytes_;
  const std::string& file_;
  std::size_t at_ = 0;
};

}  // namespace trestle::checkpoint
