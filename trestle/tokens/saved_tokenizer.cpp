#include "trestle/tokens/saved_tokenizer.h"

#include <array>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/tokens/open_tokenizer.h"
#include "trestle/tokens/tokenizers/gguf_file.h"
#include "trestle/tokens/train_bpe.h"

namespace trestle::tokens {

namespace {

namespace fs = std::filesystem;

constexpr std::array names = {"tokenizer.json",      "vocab.json",
                              "merges.txt",          "encoder.json",
                              "vocab.bpe",           "tokenizer.model",
                              "chat_template.jinja", "tokenizer_config.json",
                              "chat_template.txt",   "bytes"};

void copy_one(const fs::path& from, const fs::path& to) {
  std::error_code why;
  if (fs::equivalent(from, to, why)) return;  // the model's own folder, by another name
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, why);
  if (why) throw FileError(why.message(), {.file = to.string()});
}

}  // namespace

void copy_tokenizer(const fs::path& from, const fs::path& folder) {
  if (from == "bytes") return write_file(folder / "bytes", "");
  if (is_gguf_file(from)) {
    const GgufFile file = read_gguf_tokens(from);
    save_tokenizer_json(gguf_parts(file.tokens), folder / "tokenizer.json");
    if (!file.chat_template.empty()) write_file(folder / "chat_template.jinja", file.chat_template);
    return;
  }
  const fs::path beside = fs::is_directory(from) ? from : from.parent_path();
  for (const char* name : names)
    if (fs::exists(beside / name)) copy_one(beside / name, folder / name);
  if (fs::is_directory(from)) return;
  // A file of another name is found by its ending.
  copy_one(from, folder / (from.extension() == ".model" ? "tokenizer.model" : "tokenizer.json"));
}

std::unique_ptr<Tokenizer> open_saved_tokenizer(const fs::path& folder) {
  return open_tokenizer(fs::exists(folder / "bytes") ? fs::path("bytes") : folder);
}

}  // namespace trestle::tokens
