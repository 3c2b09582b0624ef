#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "trestle/tokens/tokenizer.h"

namespace trestle::tokens {

// A SentencePiece model (`tokenizer.model`), unigram or BPE, with byte fallback if it has it. The
// ids equal those of the package sentencepiece. A control token such as "</s>" has no bytes, as
// there. With Specials::Recognised the text after a control token is encoded as a text of its own.
// Throws FormatError, with the file, for anything that is not such a model.
std::unique_ptr<Tokenizer> read_sentencepiece(const std::filesystem::path& path);

// The same from the file's content. `file` is its name for messages.
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view content, const std::string& file);

}  // namespace trestle::tokens
