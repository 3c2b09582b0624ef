#include "trestle/tokens/tokenizers/normalize_unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::tokens {

std::string normalize_unicode(std::string_view input, Normalization form) {
  const bool ascii = std::all_of(input.begin(), input.end(),
                                 [](char byte) { return static_cast<unsigned char>(byte) < 0x80; });
  if (ascii) return std::string(input);
  int options = UTF8PROC_STABLE;
  switch (form) {
    case Normalization::Nfc:
      options |= UTF8PROC_COMPOSE;
      break;
    case Normalization::Nfd:
      options |= UTF8PROC_DECOMPOSE;
      break;
    case Normalization::Nfkc:
      options |= UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
      break;
    case Normalization::Nfkd:
      options |= UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
      break;
  }
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(input.data()),
                   static_cast<utf8proc_ssize_t>(input.size()), &result,
                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0) {
    throw UsageError(text("a text of ", input.size(),
                          " bytes could not be normalized: ", utf8proc_errmsg(length)),
                     {.hint = "Split the text into shorter ones."});
  }
  return {reinterpret_cast<const char*>(result), static_cast<std::size_t>(length)};
}

}  // namespace trestle::tokens
