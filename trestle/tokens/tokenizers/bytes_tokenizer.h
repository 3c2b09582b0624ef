#pragma once

#include <memory>

#include "trestle/tokens/tokenizer.h"

namespace trestle::tokens {

// Each byte is a token, and its id is its value: 256 ids, no vocabulary file. Invalid UTF-8 becomes
// U+FFFD as with every tokenizer.
std::unique_ptr<Tokenizer> bytes_tokenizer();

}  // namespace trestle::tokens
