#pragma once

#include <string>
#include <string_view>

#include "trestle/tokens/tokenizers/bpe_parts.h"

namespace trestle::tokens {

// A normalization form of valid UTF-8. Throws UsageError if there is not enough memory.
std::string normalize_unicode(std::string_view text, Normalization form);

}  // namespace trestle::tokens
