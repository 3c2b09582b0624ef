#pragma once

#include <filesystem>
#include <memory>

#include "trestle/tokens/tokenizer.h"

namespace trestle::tokens {

// Opens a tokenizer, by the first of these that fits:
//
//     bytes                the word, not a file: each byte is a token (bytes_tokenizer.h)
//     FILE.model           a SentencePiece model (sentencepiece_tokenizer.h)
//     FILE.json            a tokenizer.json (tokenizer_json.h)
//     a GGUF file          with byte-level BPE in its metadata (gguf_tokens.h)
//     FOLDER               with tokenizer.json, or vocab.json and merges.txt, or encoder.json and
//                          vocab.bpe (vocab_merges.h), or tokenizer.model
//
// Characters need a text (character_tokenizer.h). Throws UsageError for anything else, FileError
// for a file that cannot be read, and FormatError for one that is invalid or has a feature that is
// not supported.
//
//   auto tokenizer = trestle::tokens::open_tokenizer("smollm/tokenizer.json");
//   std::vector<trestle::tokens::Id> ids = tokenizer->encode("The capital of France is");
//   std::string text = tokenizer->decode(ids);
std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& path);

}  // namespace trestle::tokens
