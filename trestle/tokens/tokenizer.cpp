#include "trestle/tokens/tokenizer.h"

namespace trestle::tokens {

std::string Tokenizer::decode(std::span<const Id> ids) const {
  std::string text;
  for (const Id id : ids) text += bytes(id);
  return text;
}

}  // namespace trestle::tokens
