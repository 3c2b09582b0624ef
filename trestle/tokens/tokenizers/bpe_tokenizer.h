#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trestle/tokens/tokenizer.h"
#include "trestle/tokens/tokenizers/added_tokens.h"
#include "trestle/tokens/tokenizers/bpe_model.h"
#include "trestle/tokens/tokenizers/bpe_parts.h"
#include "trestle/tokens/tokenizers/split_pattern.h"

namespace trestle::tokens {

// Byte-level byte-pair encoding, the tokenizers of GPT-2, Llama-3, SmolLM2 and Qwen2. Its ids equal
// those of Hugging Face's tokenizers.
class BpeTokenizer final : public Tokenizer {
 public:
  // Throws FormatError, with the source of the parts, for ids that are out of range and for
  // regular expressions that are not supported.
  explicit BpeTokenizer(BpeParts parts);
  ~BpeTokenizer() override;

  std::vector<Id> encode(std::string_view text,
                         Specials specials = Specials::AsText) const override;
  std::string_view bytes(Id id) const override;
  Id size() const override;
  bool is_special(Id id) const override;
  std::vector<Id> prefix() const override { return parts_.prefix; }
  std::vector<Id> suffix() const override { return parts_.suffix; }
  Id find(std::string_view spelling) const override;
  std::string hash() const override { return hash_; }

  // The parts that the tokenizer consists of.
  const BpeParts& parts() const { return parts_; }

 private:
  struct Stage;
  struct Scratch;
  std::unique_ptr<Scratch> take_scratch() const;
  void check_parts() const;
  void encode_normalized(std::string_view text, Specials specials, Scratch* scratch,
                         std::vector<Id>* out) const;
  void encode_words(std::size_t stage, std::string_view text, Scratch* scratch,
                    std::vector<Id>* out) const;

  BpeParts parts_;
  std::vector<Stage> stages_;
  std::unique_ptr<BpeModel> model_;
  std::unique_ptr<AddedTokens> found_before_normalization_;
  std::unique_ptr<AddedTokens> found_after_normalization_;
  std::vector<bool> special_;
  std::unordered_map<std::string_view, Id> ids_;  // of the bytes in parts_
  std::string hash_;

  // Each call of encode() borrows one, so that its cache serves the next call.
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> free_scratches_;
};

}  // namespace trestle::tokens
