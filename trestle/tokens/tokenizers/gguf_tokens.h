#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/tokens/tokenizer.h"
#include "trestle/tokens/tokenizers/bpe_parts.h"

namespace trestle::tokens {

// The tokenizer in a GGUF file, as its metadata has it; the keys begin with "tokenizer.ggml.".
struct GgufTokens {
  std::string file = {};                      // its name, for messages
  std::string model = {};                     // "gpt2": byte-level BPE
  std::string pre = {};                       // the pre-tokenizer's name
  std::vector<std::string> tokens = {};       // each token's spelling, by id
  std::vector<std::string> merges = {};       // "left right"
  std::vector<std::int32_t> token_type = {};  // by id; empty: all are normal
  Id bos_token_id = -1;                       // -1: none
  Id eos_token_id = -1;
  std::optional<bool> add_bos_token = {};  // none: true for Llama-3's pre-tokenizer only
  std::optional<bool> add_eos_token = {};
};

// The tokenizer of these parts. Known pre-tokenizers are those of GPT-2, Llama-3, SmolLM2 and
// Qwen2, under all their names in GGUF files; that of Qwen2 normalizes to NFC, as the original
// tokenizer.json does. Throws UsageError for an unknown pre-tokenizer or model, FormatError for
// parts that do not fit.
//
//   trestle::tokens::GgufTokens parts = {.file = "tiny.gguf", .model = "gpt2", .pre = "gpt-2"};
//   parts.tokens = {"a", "b", "ab"};
//   parts.merges = {"a b"};
//   auto tokenizer = trestle::tokens::gguf_tokenizer(parts);
std::unique_ptr<Tokenizer> gguf_tokenizer(const GgufTokens& parts);

// The same as parts, which save_tokenizer_json() writes (train_bpe.h).
BpeParts gguf_parts(const GgufTokens& parts);

}  // namespace trestle::tokens
