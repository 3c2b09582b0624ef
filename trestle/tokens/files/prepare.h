#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trestle/base/overwrite.h"
#include "trestle/tokens/chat_template.h"
#include "trestle/tokens/tokenizer.h"

// Text files to token files.
//
//   auto tokenizer = trestle::tokens::open_tokenizer("smollm/tokenizer.json");
//   trestle::tokens::prepare({"plays", "more.jsonl"}, *tokenizer, {.out = "data/plays"});
namespace trestle::tokens {

struct PrepareOptions {
  std::filesystem::path out = {};           // the folder, which is made whole or not at all
  Overwrite overwrite = Overwrite::Refuse;  // of a folder of token files at `out`
  // The id after each document; a model learns to end there. Nothing: none. The tokenizer's own
  // prefix and suffix go around each document too.
  std::optional<Id> end_token = {};
  // The share of the documents for validation, drawn by `seed`; of a single document, its last
  // tokens. 0 = no validation.
  double validation = 0.1;
  std::uint64_t seed = 42;
  std::string jsonl_key = "text";  // of the document in each line of a .jsonl file
  // Keys of pairs in each line of the sources, which are then .jsonl files or standard input. Only
  // answers are targets of the loss (NAME.counts). Empty: no pairs.
  std::string prompt_key = {};
  std::string answer_key = "answer";
  // Writes each pair as a conversation of this template: a user's message and its answer, which
  // ends as the template's messages end. `end_token` and the tokenizer's prefix are left out then.
  std::optional<ChatTemplate> chat = {};
  // A line of a text file that ends a document, such as "%"; empty: a file is one document.
  std::string separator = {};
  std::int64_t shard_tokens = 100'000'000;  // most tokens of a file, unless one document has more
  int threads = 0;                          // 0 = all cores; the result does not depend on them
  // Writes the tokenizer into a folder, which becomes "tokenizer" in `out`; may be null.
  std::function<void(const std::filesystem::path&)> save_tokenizer = {};
  // Called with the bytes of text that are done, and all bytes of the sources (0 for standard
  // input); false stops: nothing is written then, and prepare() throws StateError.
  std::function<bool(std::int64_t, std::int64_t)> progress = {};
};

struct Prepared {
  // Empty documents are left out, and pairs with an empty answer.
  std::int64_t documents = 0, empty_documents = 0;
  std::int64_t repaired_documents = 0;  // with bytes that are not UTF-8
  std::int64_t bytes = 0;               // of text
  std::int64_t training_tokens = 0, validation_tokens = 0;
  std::int64_t files = 0;  // token files
};

// Reads the sources in their order: text files; folders, with the .txt, .md and .jsonl files below
// them, sorted; .jsonl files; "-", which is standard input. Writes train_000000.bin, ... and
// validation_000000.bin, ... (token_file.h). Invalid UTF-8 becomes U+FFFD, and a byte order mark
// at the begin of a file is left out. The folder `out` is
// written beside itself under another name, and renamed at the end.
//
// Throws UsageError for missing sources, no text at all, an existing `out`, and options out of
// range; FormatError, with file and line, for an invalid line of JSON; FileError if the system
// rejects a read or a write. Overwrite::Allow replaces a folder of token files only if nothing else
// is in it.
Prepared prepare(const std::vector<std::string>& sources, const Tokenizer& tokenizer,
                 const PrepareOptions& options);

// All text of the sources, to find its characters. Throws as prepare().
std::string read_sources(const std::vector<std::string>& sources, const PrepareOptions& options);

}  // namespace trestle::tokens
