#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trestle/tokens/files/token_file.h"

namespace trestle::tokens {

// The token files of a text as one sequence.
class TokenSet {
 public:
  // A .bin file, or all files "<split>*.bin" of a folder in the order of their names, where `split`
  // is "train" or "validation" ("val*.bin" counts as validation, as nanoGPT and llm.c write it).
  // Throws UsageError if there is none; FormatError for files of different tokenizers, and as
  // TokenFile.
  explicit TokenSet(const std::filesystem::path& path, const std::string& split = "train");

  std::int64_t count() const { return begins_.back(); }
  // The hash of the tokenizer, and its number of ids; empty and 0 where the files do not say so.
  const std::string& tokenizer() const { return files_[0]->info().tokenizer; }
  std::int64_t vocabulary() const { return files_[0]->info().vocabulary; }

  // The id with which documents end (TokenFileInfo::end_token).
  std::optional<std::int64_t> end_token() const { return files_[0]->info().end_token; }

  // Number of documents, and the range of tokens of each. A file's begin begins a document.
  std::int64_t documents() const { return static_cast<std::int64_t>(documents_.size()) - 1; }
  std::int64_t document_begin(std::int64_t document) const {
    return documents_[static_cast<std::size_t>(document)];
  }
  std::int64_t document_size(std::int64_t document) const {
    return document_begin(document + 1) - document_begin(document);
  }

  // Copies the ids from `first` on, over the borders of files. Throws as TokenFile::read().
  void read(std::int64_t first, std::span<std::int64_t> ids, std::int64_t vocabulary) const;

  // Replaces each target by -100 where the token from `first` on does not count (NAME.counts).
  void mask(std::int64_t first, std::span<std::int64_t> targets) const;

  void check_content() const;
  // Whether each file names the checksum of its ids.
  bool has_checksums() const;
  // Changes with the files' contents: a hash of their checksums and sizes.
  std::uint64_t content_hash() const;

 private:
  struct Place {
    std::size_t file;
    std::int64_t token;
  };
  Place place_of(std::int64_t token) const;

  std::vector<std::unique_ptr<TokenFile>> files_;
  std::vector<std::int64_t> begins_;     // of the files, and the end
  std::vector<std::int64_t> documents_;  // begins, and the end
  bool has_counts_ = false;              // in one of the files
};

// Throws UsageError if the files were written with another tokenizer than `hash`, with both hashes.
// Files that name no tokenizer pass; reading them checks the ids.
void check_tokenizer(const TokenSet& set, const std::string& hash, const std::string& file);

}  // namespace trestle::tokens
