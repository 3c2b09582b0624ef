#include "trestle/tokens/tokenizers/byte_alphabet.h"

#include <cstddef>

namespace trestle::tokens {

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const unsigned code = printable ? byte : next++;
    bytes_[code] = static_cast<std::int16_t>(byte);
    if (code < 0x80) {
      spellings_[byte] = {static_cast<char>(code)};
    } else {
      spellings_[byte] = {static_cast<char>(0xC0 | code >> 6),
                          static_cast<char>(0x80 | (code & 63))};
    }
  }
}

std::optional<std::string> ByteAlphabet::bytes(std::string_view spelling) const {
  std::string out;
  out.reserve(spelling.size());
  for (std::size_t at = 0; at < spelling.size(); ++at) {
    unsigned code = static_cast<unsigned char>(spelling[at]);
    if (code >= 0x80) {
      if (code < 0xC2 || code > 0xC7 || at + 1 >= spelling.size()) return std::nullopt;
      const unsigned second = static_cast<unsigned char>(spelling[++at]);
      if ((second & 0xC0) != 0x80) return std::nullopt;
      code = (code & 0x1F) << 6 | (second & 0x3F);
    }
    if (code >= bytes_.size() || bytes_[code] < 0) return std::nullopt;
    out += static_cast<char>(bytes_[code]);
  }
  return out;
}

std::string ByteAlphabet::spell(std::string_view bytes) const {
  std::string out;
  for (const char byte : bytes) out += spelling(static_cast<unsigned char>(byte));
  return out;
}

}  // namespace trestle::tokens
