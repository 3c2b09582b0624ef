#include "trestle/base/shell_word.h"

namespace trestle {

std::string shell_word(std::string_view word) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+";
  const auto is_plain = [&](char c) {  // non-ASCII letters too
    return plain.find(c) != std::string_view::npos || static_cast<unsigned char>(c) >= 0x80;
  };
  bool all = !word.empty();
  for (const char c : word) all = all && is_plain(c);
  if (all) return std::string(word);
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace trestle
