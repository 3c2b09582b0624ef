#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Files of token ids, mapped into memory.
//
// The layout is llm.c's: 256 int32 (1,024 bytes), of which the first three are the magic number,
// the version and the number of tokens, and then the ids: uint16 for magic 20240520 and version 1,
// uint32 for magic 20240801 and version 7. A file of ids alone, uint16, is nanoGPT's. Numbers are
// little-endian.
//
// Beside NAME.bin may be NAME.json, what trestle knows about the file (TokenFileInfo), and
// NAME.documents, the position of each document's first token as uint64. NAME.counts, if it is
// there, has one bit per token: 1 if the token is a target of the loss. The bit of token i is bit
// i % 8 of byte i / 8.
namespace trestle::tokens {

struct TokenFileInfo {
  std::string tokenizer = {};   // its hash (Tokenizer::hash()); empty: not known
  std::int64_t vocabulary = 0;  // number of ids of the tokenizer; 0: not known
  // The id with which documents end, whatever the text writes; nothing: none, or not known.
  std::optional<std::int64_t> end_token = {};
  std::string checksum = {};  // of the bytes of the ids, 16 hexadecimal digits; empty: not known
  std::string counts_checksum = {};       // of NAME.counts; empty: not known, or every token counts
  std::vector<std::string> sources = {};  // the names of the texts, for a reader of NAME.json
};

class TokenFile {
 public:
  // Throws FileError if it cannot be read; FormatError for a size that does not match the header,
  // for another magic number or version, and for files beside it that do not fit it.
  explicit TokenFile(const std::filesystem::path& path);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  std::int64_t count() const { return count_; }
  const TokenFileInfo& info() const { return info_; }
  const std::filesystem::path& path() const { return path_; }
  // Positions of the documents' first tokens, in order; {0} for a file without that list; nothing
  // for a file without tokens.
  const std::vector<std::int64_t>& documents() const { return documents_; }

  // Copies the ids from `first` on. Throws FormatError, with the position, for an id that is not
  // below `vocabulary`; UsageError for a range that is not in the file.
  void read(std::int64_t first, std::span<std::int64_t> ids, std::int64_t vocabulary) const;

  // Whether some tokens are no targets. target_counts() is true for each token of other files.
  bool has_counts() const { return !counts_.empty(); }
  bool target_counts(std::int64_t token) const {
    if (counts_.empty()) return true;
    return (counts_[static_cast<std::size_t>(token / 8)] >> (token % 8) & 1) != 0;
  }

  // Compares the ids and the counts with their checksums. Throws FormatError if they differ.
  void check_content() const;

 private:
  void open();
  void read_header();
  void read_description();
  void read_documents();
  void read_begins();
  void read_counts();

  std::filesystem::path path_;
  const char* bytes_ = nullptr;  // of the whole file
  std::int64_t size_ = 0;
  std::int64_t begin_ = 0;  // of the ids
  std::int64_t width_ = 2;  // bytes of an id
  std::int64_t count_ = 0;
  TokenFileInfo info_;
  std::optional<std::int64_t> named_documents_;  // their number in NAME.json
  std::vector<std::int64_t> documents_;
  std::string counts_;  // of NAME.counts
};

// Writes NAME.bin, NAME.json and NAME.documents; ids are uint16 where the vocabulary allows it.
// `counts` has a bool for each id, and then NAME.counts is written too, or nothing. The checksums
// of `info` are not used. Each file appears whole, NAME.bin last. Throws UsageError for ids that
// are not below the vocabulary and for 2^31 ids or more, FileError if the system rejects a write.
void write_token_file(const std::filesystem::path& bin, std::span<const std::int32_t> ids,
                      std::span<const std::int64_t> documents, const TokenFileInfo& info,
                      const std::vector<bool>& counts = {});

}  // namespace trestle::tokens
