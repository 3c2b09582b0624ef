#include "trestle/tokens/tokenizers/character_tokenizer.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/base/utf8.h"
#include "trestle/tokens/tokenizers/code_points.h"
#include "trestle/tokens/tokenizers/content_hash.h"
#include "trestle/tokens/tokenizers/valid_utf8.h"

namespace trestle::tokens {

CharacterTokenizer::CharacterTokenizer(std::vector<std::string> characters, const std::string& file)
    : characters_(std::move(characters)) {
  Id id = 0;
  for (const std::string& character : characters_) {
    if (character.empty() || utf8_length(character, 0) != character.size()) {
      throw FormatError(text("token ", id, ", '", character, "', is not one character"),
                        {.file = file});
    }
    if (!ids_.emplace(code_point_at(character, 0).code, id).second) {
      throw FormatError(text("the character '", character, "' occurs twice"), {.file = file});
    }
    ++id;
  }
}

std::vector<Id> CharacterTokenizer::encode(std::string_view input, Specials) const {
  std::string storage;
  const std::string_view valid = valid_utf8(input, &storage);
  std::vector<Id> ids;
  for (std::size_t at = 0; at < valid.size();) {
    const CodePoint next = code_point_at(valid, at);
    const auto found = ids_.find(next.code);
    if (found == ids_.end()) {
      throw UsageError(text("the character '", valid.substr(at, next.length), "' at byte ", at,
                            " is not one of the ", size(), " characters of the tokenizer"),
                       {.hint = "Make the character tokenizer from all texts, or use the tokenizer "
                                "\"bytes\", which has a token for everything."});
    }
    ids.push_back(found->second);
    at += next.length;
  }
  return ids;
}

std::string_view CharacterTokenizer::bytes(Id id) const {
  if (id < 0 || id >= size()) {
    throw UsageError(
        text("token id ", id, " is out of range; the ids of this tokenizer are 0 to ", size() - 1));
  }
  return characters_[static_cast<std::size_t>(id)];
}

Id CharacterTokenizer::find(std::string_view spelling) const {
  if (spelling.empty() || utf8_length(spelling, 0) != spelling.size()) return -1;
  const auto found = ids_.find(code_point_at(spelling, 0).code);
  return found == ids_.end() ? -1 : found->second;
}

std::string CharacterTokenizer::hash() const {
  ContentHash hash;
  hash.add("characters");
  for (const std::string& character : characters_) hash.add(character);
  return hash.digits();
}

void CharacterTokenizer::save(const std::filesystem::path& path) const {
  nlohmann::json vocabulary = nlohmann::json::object();
  Id id = 0;
  for (const std::string& character : characters_) vocabulary[character] = id++;
  const nlohmann::json file = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", nlohmann::json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "Split"},
        {"pattern", {{"Regex", character_pattern}}},
        {"behavior", "Isolated"},
        {"invert", false}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "Fuse"}}},
      // No character is spelled like this, so an unknown one is an error there too.
      {"model", {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "(unknown)"}}}};
  write_file(path, file.dump(1) + "\n");
}

std::unique_ptr<CharacterTokenizer> character_tokenizer(std::string_view input) {
  std::string storage;
  const std::string_view valid = valid_utf8(input, &storage);
  std::set<char32_t> seen;
  std::vector<std::string> characters;
  // UTF-8 sorts as the code points do.
  std::set<std::string, std::less<>> sorted;
  for (std::size_t at = 0; at < valid.size();) {
    const CodePoint next = code_point_at(valid, at);
    if (seen.insert(next.code).second) sorted.emplace(valid.substr(at, next.length));
    at += next.length;
  }
  characters.assign(sorted.begin(), sorted.end());
  return std::make_unique<CharacterTokenizer>(std::move(characters), "");
}

}  // namespace trestle::tokens
