#pragma once

#include <string>
#include <string_view>

namespace trestle::tokens {

// Checks the table of a SentencePiece model that the library uses without checks: the characters
// and their normalized forms, a double-array trie that the file holds as an array of numbers.
// Throws FormatError, with the file, if the library could read outside it.
void check_sentencepiece(std::string_view content, const std::string& file);

}  // namespace trestle::tokens
