#pragma once

#include <string>

#include "trestle/tokens/tokenizers/bpe_parts.h"

namespace trestle::tokens {

// 16 hexadecimal digits that depend on everything in the parts that decides an id or a token's
// bytes, and on nothing else. The files of one tokenizer in several formats have one hash.
std::string bpe_hash(const BpeParts& parts);

}  // namespace trestle::tokens
