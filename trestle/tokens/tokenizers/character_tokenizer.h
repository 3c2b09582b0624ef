#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trestle/tokens/tokenizer.h"

namespace trestle::tokens {

// Each character (code point) is a token. Ids are the ranks of the characters in the order of
// Unicode.
class CharacterTokenizer final : public Tokenizer {
 public:
  // `characters[id]` is one character in UTF-8. Throws FormatError, with the file, for anything
  // else and for a character that occurs twice.
  CharacterTokenizer(std::vector<std::string> characters, const std::string& file);

  // Throws UsageError, with the place, for a character that has no token.
  std::vector<Id> encode(std::string_view text,
                         Specials specials = Specials::AsText) const override;
  std::string_view bytes(Id id) const override;
  Id size() const override { return static_cast<Id>(characters_.size()); }
  bool is_special(Id) const override { return false; }
  Id find(std::string_view spelling) const override;
  std::string hash() const override;

  // Writes a tokenizer.json that open_tokenizer() and Hugging Face's tokenizers read.
  void save(const std::filesystem::path& path) const;

 private:
  std::vector<std::string> characters_;
  std::unordered_map<char32_t, Id> ids_;
};

// The tokenizer of the characters that occur in a text.
//
//   auto tokenizer = trestle::tokens::character_tokenizer("hello world");
//   tokenizer->save("characters.json");
std::unique_ptr<CharacterTokenizer> character_tokenizer(std::string_view text);

// The regular expression of the pre-tokenizer in the file that save() writes: any character.
inline constexpr std::string_view character_pattern = R"([\s\S])";

}  // namespace trestle::tokens
