#include "trestle/tokens/train_bpe.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/tokens/tokenizers/bpe_tokenizer.h"
#include "trestle/tokens/tokenizers/bpe_trainer.h"
#include "trestle/tokens/tokenizers/byte_alphabet.h"
#include "trestle/tokens/tokenizers/count_words.h"
#include "trestle/tokens/tokenizers/split_patterns.h"

namespace trestle::tokens {
namespace {

void check_options(const TrainBpeOptions& options) {
  const std::size_t least = 256 + options.special_tokens.size();
  if (options.vocabulary_size < static_cast<std::int64_t>(least)) {
    throw UsageError(
        text("a vocabulary of ", options.vocabulary_size, " tokens is too small for 256 bytes and ",
             options.special_tokens.size(), " special tokens"),
        {.hint = text("Set vocabulary_size to ", least, " or more.")});
  }
  const ByteAlphabet alphabet;
  std::set<std::string> seen;
  for (const std::string& token : options.special_tokens) {
    const auto bytes = alphabet.bytes(token);
    if (!token.empty() && (!bytes || bytes->size() > 1) && seen.insert(token).second) continue;
    throw UsageError(text("the special token '", token,
                          "' is empty, occurs twice, or is the spelling of a byte"),
                     {.hint = "Choose a spelling that no text has, such as <|endoftext|>."});
  }
}

// Adds the special tokens and the bytes. Returns the ids of the bytes.
std::array<Id, 256> add_first_tokens(const TrainBpeOptions& options, BpeParts* parts) {
  for (const std::string& token : options.special_tokens) {
    const auto id = static_cast<Id>(parts->tokens.size());
    parts->tokens.push_back({.bytes = token, .word = false});
    parts->added.push_back({.id = id, .text = token, .special = true});
  }
  const ByteAlphabet alphabet;
  std::vector<unsigned char> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<unsigned char>(byte));
  std::sort(bytes.begin(), bytes.end(), [&](unsigned char a, unsigned char b) {
    return alphabet.spelling(a) < alphabet.spelling(b);
  });
  std::array<Id, 256> ids{};
  for (const unsigned char byte : bytes) {
    ids[byte] = static_cast<Id>(parts->tokens.size());
    parts->tokens.push_back({.bytes = {static_cast<char>(byte)}, .word = true});
  }
  return ids;
}

}  // namespace

BpeParts train_bpe(std::span<const std::string_view> texts, const TrainBpeOptions& options) {
  check_options(options);
  BpeParts parts;
  parts.stages = {{.pattern = std::string(gpt2_pattern)}};
  const std::array<Id, 256> byte_ids = add_first_tokens(options, &parts);
  BpeTrainer trainer(count_words(texts), byte_ids);
  // Two pairs may give the same bytes, as "a" + "bc" and "ab" + "c". It is one token; so is a word
  // that is spelled as a special token, because a file has one id for each spelling.
  std::unordered_map<std::string, Id> ids;
  const ByteAlphabet alphabet;
  for (const AddedToken& token : parts.added) {
    if (const auto bytes = alphabet.bytes(token.text)) ids.emplace(*bytes, token.id);
  }
  for (std::size_t id = options.special_tokens.size(); id < parts.tokens.size(); ++id) {
    ids.emplace(parts.tokens[id].bytes, static_cast<Id>(id));
  }
  while (parts.tokens.size() < static_cast<std::size_t>(options.vocabulary_size)) {
    const auto pair = trainer.most_frequent();
    if (!pair || pair->count < options.min_frequency) break;
    std::string bytes = parts.tokens[static_cast<std::size_t>(pair->left)].bytes +
                        parts.tokens[static_cast<std::size_t>(pair->right)].bytes;
    const auto [known, is_new] = ids.emplace(bytes, static_cast<Id>(parts.tokens.size()));
    if (is_new) parts.tokens.push_back({.bytes = std::move(bytes), .word = true});
    parts.merges.push_back({pair->left, pair->right, known->second});
    trainer.merge(*pair, known->second);
  }
  return parts;
}

std::unique_ptr<Tokenizer> bpe_tokenizer(BpeParts parts) {
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace trestle::tokens
