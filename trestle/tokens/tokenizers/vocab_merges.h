#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "trestle/tokens/tokenizer.h"

namespace trestle::tokens {

// GPT-2's tokenizer from its two files: `vocab.json` (also named `encoder.json`) has the id of each
// token, and `merges.txt` (also named `vocab.bpe`) has one merge in each line. The pre-tokenizer is
// GPT-2's, and "<|endoftext|>" is a special token if the vocabulary has it. Throws FormatError
// with the file and the place.
std::unique_ptr<Tokenizer> read_vocab_merges(const std::filesystem::path& vocabulary,
                                             const std::filesystem::path& merges);

// The same from the files' content. `file` is the vocabulary's name for messages.
std::unique_ptr<Tokenizer> parse_vocab_merges(std::string_view vocabulary, std::string_view merges,
                                              const std::string& file);

}  // namespace trestle::tokens
