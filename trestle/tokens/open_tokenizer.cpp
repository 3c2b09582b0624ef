#include "trestle/tokens/open_tokenizer.h"

#include <array>
#include <string>
#include <system_error>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/tokens/tokenizers/bytes_tokenizer.h"
#include "trestle/tokens/tokenizers/gguf_file.h"
#include "trestle/tokens/tokenizers/sentencepiece_tokenizer.h"
#include "trestle/tokens/tokenizers/tokenizer_json.h"
#include "trestle/tokens/tokenizers/vocab_merges.h"

namespace trestle::tokens {
namespace {

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::unique_ptr<Tokenizer> open_folder(const std::filesystem::path& folder) {
  if (is_there(folder / "tokenizer.json")) return read_tokenizer_json(folder / "tokenizer.json");
  constexpr std::array<std::pair<const char*, const char*>, 2> pairs = {
      {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}}};
  for (const auto& [vocabulary, merges] : pairs) {
    if (is_there(folder / vocabulary) && is_there(folder / merges)) {
      return read_vocab_merges(folder / vocabulary, folder / merges);
    }
  }
  if (is_there(folder / "tokenizer.model")) return read_sentencepiece(folder / "tokenizer.model");
  throw UsageError(
      "the folder has no tokenizer",
      {.file = folder.string(),
       .hint = "It needs tokenizer.json, or vocab.json and merges.txt, or encoder.json "
               "and vocab.bpe, or tokenizer.model."});
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& path) {
  if (path == "bytes") return bytes_tokenizer();
  if (path == "characters") {
    throw UsageError("the tokenizer 'characters' needs the text that it is made of",
                     {.hint = "In a program, call character_tokenizer(text), and save() writes a "
                              "file that can be opened."});
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return open_folder(path);
  const std::string extension = path.extension().string();
  if (extension == ".model") return read_sentencepiece(path);
  if (extension == ".json") {
    const std::string name = path.filename().string();
    if (name == "vocab.json" || name == "encoder.json") {
      throw UsageError(text(name, " is one of a tokenizer's two files"),
                       {.file = path.string(), .hint = "Give the folder that holds both."});
    }
    return read_tokenizer_json(path);
  }
  if (is_gguf_file(path)) return gguf_tokenizer(read_gguf_tokens(path).tokens);
  throw UsageError("this is no tokenizer by its name",
                   {.file = path.string(),
                    .hint = "Give a tokenizer.json, a SentencePiece .model file, a GGUF file, a "
                            "folder with one of them, or the word bytes."});
}

}  // namespace trestle::tokens
