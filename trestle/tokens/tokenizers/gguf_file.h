#pragma once

#include <filesystem>
#include <string>

#include "trestle/tokens/tokenizers/gguf_tokens.h"

namespace trestle::tokens {

// The tokenizer and the chat template in a GGUF file.
struct GgufFile {
  GgufTokens tokens;          // `model` is empty for a file without a tokenizer
  std::string chat_template;  // Jinja; empty: none
};

// Throws as checkpoint::read_gguf_header().
GgufFile read_gguf_tokens(const std::filesystem::path& path);

// Whether it is a file that begins as a GGUF file.
bool is_gguf_file(const std::filesystem::path& path);

}  // namespace trestle::tokens
