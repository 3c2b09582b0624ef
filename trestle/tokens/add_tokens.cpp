#include "trestle/tokens/add_tokens.h"

#include <algorithm>
#include <set>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/utf8.h"
#include "trestle/tokens/open_tokenizer.h"
#include "trestle/tokens/tokenizers/bpe_hash.h"
#include "trestle/tokens/tokenizers/bpe_tokenizer.h"
#include "trestle/tokens/tokenizers/byte_alphabet.h"
#include "trestle/tokens/train_bpe.h"

namespace trestle::tokens {

namespace {

void check_spelling(const Tokenizer& tokenizer, const std::string& spelling) {
  if (spelling.empty()) throw UsageError("a new token needs a spelling, and its spelling is empty");
  if (!is_utf8(spelling)) throw UsageError("the spelling of a new token is not UTF-8");
  const Id known = tokenizer.find(spelling);
  if (known >= 0)
    throw UsageError(
        text("the tokenizer has the token '", spelling, "' already: its id is ", known),
        {.hint = "Leave it out."});
  // tokenizer.json has one name for the new token and for that of these bytes.
  const auto bytes = ByteAlphabet().bytes(spelling);
  const Id same_name = bytes ? tokenizer.find(*bytes) : -1;
  if (same_name >= 0)
    throw UsageError(
        text("a new token cannot be called '", spelling,
             "': the tokenizer's file spells the token ", same_name, ", '", *bytes, "', so"),
        {.hint = text("Leave it out: a text with '", *bytes, "' has that token.")});
}

}  // namespace

std::unique_ptr<Tokenizer> add_tokens(const Tokenizer& tokenizer,
                                      const std::vector<NewToken>& added) {
  const auto* const bpe = dynamic_cast<const BpeTokenizer*>(&tokenizer);
  if (bpe == nullptr)
    throw UsageError("tokens can be added to a tokenizer of byte-level BPE alone",
                     {.hint = "Characters take their tokens from the text; `trestle text "
                              "train-tokenizer` learns byte-level BPE."});
  if (added.empty()) throw UsageError("there is no token to add");
  BpeParts parts = bpe->parts();
  std::set<std::string> seen;
  for (const NewToken& token : added) {
    check_spelling(tokenizer, token.spelling);
    if (!seen.insert(token.spelling).second)
      throw UsageError(text("the new token '", token.spelling, "' is given twice"));
    parts.added.push_back({.id = static_cast<Id>(parts.tokens.size()),
                           .text = token.spelling,
                           .special = token.special});
    parts.tokens.push_back({.bytes = token.spelling});
  }
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

std::int64_t added_tokens(const Tokenizer& larger, const Tokenizer& tokenizer) {
  const auto* const bpe = dynamic_cast<const BpeTokenizer*>(&larger);
  if (bpe == nullptr || larger.size() <= tokenizer.size()) return 0;
  BpeParts parts = bpe->parts();
  parts.tokens.resize(static_cast<std::size_t>(tokenizer.size()));
  std::erase_if(parts.added, [&](const AddedToken& token) { return token.id >= tokenizer.size(); });
  return bpe_hash(parts) == tokenizer.hash() ? larger.size() - tokenizer.size() : 0;
}

void save_added_tokens(const Tokenizer& tokenizer, const std::filesystem::path& folder) {
  const auto* const bpe = dynamic_cast<const BpeTokenizer*>(&tokenizer);
  if (bpe == nullptr) throw UsageError("this tokenizer is not one with added tokens");
  for (const char* const old : {"vocab.json", "merges.txt", "encoder.json", "vocab.bpe"})
    std::filesystem::remove(folder / old);
  const std::filesystem::path file = folder / "tokenizer.json";
  save_tokenizer_json(bpe->parts(), file);
  if (open_tokenizer(file)->hash() != tokenizer.hash())
    throw StateError("the tokenizer's file does not hold all of its rules",
                     {.file = file.string()});
}

}  // namespace trestle::tokens
