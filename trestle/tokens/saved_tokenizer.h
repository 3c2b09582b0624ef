#pragma once

#include <filesystem>
#include <memory>

#include "trestle/tokens/tokenizer.h"

// The tokenizer beside token files, in a run folder, or in the folder of a model.
namespace trestle::tokens {

// Copies the files of a tokenizer that open_tokenizer() opens into an existing folder; for "bytes"
// an empty file of that name. A chat template beside it is copied too. Throws FileError.
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& folder);

// Opens what copy_tokenizer() wrote. Throws as open_tokenizer().
std::unique_ptr<Tokenizer> open_saved_tokenizer(const std::filesystem::path& folder);

}  // namespace trestle::tokens
