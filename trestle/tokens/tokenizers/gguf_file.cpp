#include "trestle/tokens/tokenizers/gguf_file.h"

#include <fstream>
#include <optional>
#include <vector>

#include "trestle/checkpoint/files/gguf/gguf_header.h"

namespace trestle::tokens {

namespace {

GgufTokens tokens_of(const checkpoint::GgufHeader& header) {
  const auto value = [&]<class T>(const char* key, T otherwise) {
    const T* found = header.find<T>(std::string("tokenizer.ggml.") + key);
    return found != nullptr ? *found : otherwise;
  };
  const auto id = [&](const char* key) { return static_cast<Id>(value(key, std::int64_t{-1})); };
  const auto given = [&](const char* key) -> std::optional<bool> {
    const bool* found = header.find<bool>(std::string("tokenizer.ggml.") + key);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  };
  GgufTokens parts{.file = header.file,
                   .model = value("model", std::string()),
                   .pre = value("pre", std::string()),
                   .tokens = value("tokens", std::vector<std::string>()),
                   .merges = value("merges", std::vector<std::string>()),
                   .token_type = {},
                   .bos_token_id = id("bos_token_id"),
                   .eos_token_id = id("eos_token_id"),
                   .add_bos_token = given("add_bos_token"),
                   .add_eos_token = given("add_eos_token")};
  for (const std::int64_t type : value("token_type", std::vector<std::int64_t>()))
    parts.token_type.push_back(static_cast<std::int32_t>(type));
  return parts;
}

}  // namespace

GgufFile read_gguf_tokens(const std::filesystem::path& path) {
  const checkpoint::GgufHeader header = checkpoint::read_gguf_header(path);
  GgufFile file{.tokens = tokens_of(header), .chat_template = {}};
  if (const auto* jinja = header.find<std::string>("tokenizer.chat_template"))
    file.chat_template = *jinja;
  return file;
}

bool is_gguf_file(const std::filesystem::path& path) {
  if (!std::filesystem::is_regular_file(path)) return false;
  std::string begin(4, '\0');
  std::ifstream(path, std::ios::binary).read(begin.data(), 4);
  return begin == "GGUF";
}

}  // namespace trestle::tokens
