#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "trestle/tokens/tokenizer.h"

namespace trestle::tokens {

// A tokenizer from a `tokenizer.json` of Hugging Face's tokenizers. Byte-level BPE is read with its
// normalizer (NFC, NFD, NFKC, NFKD), pre-tokenizer (ByteLevel, Split, Digits and sequences of
// them), added tokens, and post-processor (TemplateProcessing, RobertaProcessing, BertProcessing).
// The file of a character tokenizer (character_tokenizer.h) is read too. Throws FormatError for
// anything else; the message names the field, and the hint lists the supported ones. The fields
// `truncation` and `padding` have no effect, as in Python's transformers unless a call sets them.
std::unique_ptr<Tokenizer> read_tokenizer_json(const std::filesystem::path& path);

// The same from the file's content. `file` is its name for messages.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view content, const std::string& file);

}  // namespace trestle::tokens
