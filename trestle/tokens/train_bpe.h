#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/tokens/tokenizer.h"
#include "trestle/tokens/tokenizers/bpe_parts.h"

namespace trestle::tokens {

struct TrainBpeOptions {
  Id vocabulary_size = 8192;       // all tokens: the special ones, 256 bytes, and merges
  std::int64_t min_frequency = 2;  // a pair that occurs less often does not merge
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
};

// Learns a byte-level BPE tokenizer with GPT-2's pre-tokenizer from texts. The ids are, in this
// order, of the special tokens, of the 256 bytes in the order of GPT-2's alphabet, and of the
// merges. Each step merges the pair that occurs most often. If several pairs do, it takes the one
// with the lowest left id, and among those the one with the lowest right id. So the
// result depends on nothing but the texts and the options, not even on the order of the texts.
// There are fewer tokens than vocabulary_size if no pair is left that occurs min_frequency times.
// Sennrich et al. 2016 (https://arxiv.org/abs/1508.07909).
//
// Throws UsageError for a vocabulary that is too small for the bytes and special tokens, and for
// special tokens that are empty, occur twice, or are the spelling of a byte.
//
//   const std::vector<std::string_view> texts = {"low lower lowest", "new newer newest"};
//   const auto parts = trestle::tokens::train_bpe(texts, {.vocabulary_size = 270});
//   trestle::tokens::save_tokenizer_json(parts, "tokenizer.json");
//   auto tokenizer = trestle::tokens::bpe_tokenizer(parts);
BpeParts train_bpe(std::span<const std::string_view> texts, const TrainBpeOptions& options);

// Writes a tokenizer.json, which open_tokenizer() and Hugging Face's tokenizers read. Throws
// FileError.
void save_tokenizer_json(const BpeParts& parts, const std::filesystem::path& path);

// The tokenizer of these parts. Throws FormatError for parts that do not fit each other.
std::unique_ptr<Tokenizer> bpe_tokenizer(BpeParts parts);

}  // namespace trestle::tokens
