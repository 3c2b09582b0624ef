#include "trestle/base/utf8.h"

#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + length > text.size()) return 0;
  char32_t code = first & (0x7Fu >> length);
  for (std::size_t i = at + 1; i < at + length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) return 0;
    code = (code << 6) | (byte(i) & 0x3Fu);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return overlong || surrogate || code > 0x10FFFF ? 0 : length;
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string_view without_byte_order_mark(std::string_view content, const std::string& file) {
  const bool utf32 = content.starts_with(std::string_view("\xff\xfe\0\0", 4)) ||
                     content.starts_with(std::string_view("\0\0\xfe\xff", 4));
  if (utf32 || content.starts_with("\xff\xfe") || content.starts_with("\xfe\xff")) {
    const std::string name = utf32 ? "UTF-32" : "UTF-16";
    throw FormatError(
        text("is ", name, ", and trestle reads UTF-8"),
        {.file = file, .hint = text("Convert it: iconv -f ", name, " -t UTF-8 FILE > NEW.")});
  }
  if (content.starts_with("\xef\xbb\xbf")) content.remove_prefix(3);
  return content;
}

}  // namespace trestle
