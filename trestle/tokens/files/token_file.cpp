#include "trestle/tokens/files/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/fnv1a.h"
#include "trestle/base/text.h"

namespace trestle::tokens {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t header_bytes = 1024;
struct Layout {
  std::int32_t magic, version;
  std::int64_t width;
};
constexpr std::array layouts = {Layout{20240520, 1, 2}, Layout{20240801, 7, 4}};

fs::path beside(const fs::path& bin, const char* ending) {
  fs::path path = bin;
  return path.replace_extension(ending);
}

std::string hex_of(std::uint64_t number) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(number));
  return digits.data();
}

// FNV-1a by words of 8 bytes: a byte at a time takes a second per gigabyte.
std::uint64_t checksum_of(std::string_view bytes) {
  std::uint64_t sum = fnv1a_offset_basis;
  while (bytes.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    sum = (sum ^ word) * 0x100000001b3ULL;
    sum ^= sum >> 29;
    bytes.remove_prefix(8);
  }
  return fnv1a(bytes, sum);
}

std::string bits_of(const std::vector<bool>& flags) {
  std::string bits((flags.size() + 7) / 8, '\0');
  for (std::size_t i = 0; i < flags.size(); ++i)
    if (flags[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << (i % 8));
  return bits;
}

std::int32_t int32_at(const char* bytes, std::int64_t number) {
  std::int32_t value = 0;
  std::memcpy(&value, bytes + 4 * number, 4);
  return value;
}

}  // namespace

TokenFile::TokenFile(const fs::path& path) : path_(path) {
  open();
  try {
    read_header();
    read_description();
    read_documents();
    read_counts();
  } catch (...) {
    if (bytes_ != nullptr) munmap(const_cast<char*>(bytes_), static_cast<std::size_t>(size_));
    throw;
  }
}

TokenFile::~TokenFile() {
  if (bytes_ != nullptr) munmap(const_cast<char*>(bytes_), static_cast<std::size_t>(size_));
}

void TokenFile::open() {
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    throw FileError(text("this token file cannot be opened: ", std::strerror(errno)),
                    {.file = path_.string()});
  struct stat status {};
  const bool regular = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  size_ = regular ? status.st_size : 0;
  void* mapped = MAP_FAILED;
  if (size_ > 0)
    mapped = mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_SHARED, file, 0);
  const int reason = errno;
  ::close(file);
  if (!regular) throw FileError("is not a file of tokens", {.file = path_.string()});
  if (size_ == 0) throw FormatError("the token file is empty", {.file = path_.string()});
  if (mapped == MAP_FAILED)
    throw FileError(text("cannot be mapped into memory: ", std::strerror(reason)),
                    {.file = path_.string()});
  bytes_ = static_cast<const char*>(mapped);
}

void TokenFile::read_header() {
  if (size_ >= header_bytes) {
    for (const Layout& layout : layouts) {
      if (int32_at(bytes_, 0) != layout.magic) continue;
      if (int32_at(bytes_, 1) != layout.version)
        throw FormatError(
            text("this token file has version ", int32_at(bytes_, 1), ", not ", layout.version),
            {.file = path_.string()});
      begin_ = header_bytes;
      width_ = layout.width;
      count_ = int32_at(bytes_, 2);
      if (count_ < 0 || size_ != begin_ + count_ * width_)
        throw FormatError(text("this token file has ", size_, " bytes; its header names ", count_,
                               " tokens, which are ", begin_ + count_ * width_, " bytes"),
                          {.file = path_.string(), .hint = "It was cut short. Prepare it again."});
      return;
    }
  }
  // nanoGPT's file begins with ids; zeros behind three numbers are a header that is not known.
  const bool has_header = size_ >= header_bytes && std::all_of(bytes_ + 12, bytes_ + header_bytes,
                                                               [](char c) { return c == 0; });
  if (has_header || fs::exists(beside(path_, ".json")))
    throw FormatError(text("has no header of a token file: it begins with ",
                           size_ >= 4 ? int32_at(bytes_, 0) : 0),
                      {.file = path_.string()});
  if (size_ % 2 != 0)
    throw FormatError(text("has ", size_, " bytes and no header of a token file"),
                      {.file = path_.string(), .hint = "`trestle text prepare` writes one."});
  count_ = size_ / 2;
}

void TokenFile::read_description() {
  const fs::path json = beside(path_, ".json");
  if (!fs::exists(json)) return;
  const auto parsed = nlohmann::json::parse(read_text_file(json), nullptr, false);
  const auto invalid = [&](const std::string& why) {
    return FormatError(text("is not the description of a token file: ", why),
                       {.file = json.string()});
  };
  if (!parsed.is_object()) throw invalid("it is no JSON object");
  try {
    info_ = {.tokenizer = parsed.value("tokenizer", ""),
             .vocabulary = parsed.value("vocabulary", std::int64_t{0}),
             .end_token = parsed.contains("end_token")
                              ? std::optional(parsed.at("end_token").get<std::int64_t>())
                              : std::nullopt,
             .checksum = parsed.value("checksum", ""),
             .counts_checksum = parsed.value("counts_checksum", ""),
             .sources = parsed.value("sources", std::vector<std::string>())};
    if (parsed.value("tokens", count_) != count_)
      throw invalid(text("it names another number of tokens than ", count_));
    if (parsed.contains("documents")) named_documents_ = parsed.at("documents").get<std::int64_t>();
  } catch (const nlohmann::json::exception& error) {
    throw invalid(error.what());
  }
  if (info_.vocabulary < 0) throw invalid(text("a vocabulary of ", info_.vocabulary, " ids"));
  if (info_.end_token && (*info_.end_token < 0 || *info_.end_token >= info_.vocabulary))
    throw invalid(text("an end token of ", *info_.end_token, " of ", info_.vocabulary, " ids"));
}

// Documents that are not found would be one: other rows, which see across their ends.
void TokenFile::read_documents() {
  read_begins();
  const std::int64_t found = std::ssize(documents_);
  if (named_documents_.value_or(found) != found)
    throw FormatError(
        text("names ", counted(found, "document"), ", and NAME.json ", *named_documents_),
        {.file = beside(path_, ".documents").string(),
         .hint = "It is missing or belongs to another file. Prepare the text again."});
}

void TokenFile::read_begins() {
  if (count_ > 0) documents_ = {0};
  const fs::path begins = beside(path_, ".documents");
  if (!fs::exists(begins)) return;
  const auto bytes = static_cast<std::int64_t>(fs::file_size(begins));
  if (bytes % 8 != 0 || bytes > 8 * count_ || (bytes == 0 && count_ > 0))
    throw FormatError(
        text("has ", bytes, " bytes, not 8 for each document of ", count_, " tokens"),
        {.file = begins.string(), .hint = "It belongs to another file. Prepare the text again."});
  const std::string list = read_file(begins);
  documents_.resize(list.size() / 8);
  std::memcpy(documents_.data(), list.data(), 8 * documents_.size());
  for (std::size_t i = 0; i < documents_.size(); ++i) {
    const std::int64_t least = i == 0 ? 0 : documents_[i - 1] + 1;
    const bool first_is_0 = i > 0 || documents_[0] == 0;
    if (documents_[i] < least || documents_[i] >= count_ || !first_is_0)
      throw FormatError(text("document ", i, " begins at token ", documents_[i], " of ", count_),
                        {.file = begins.string()});
  }
}

// Without its counts a file would also train on the prompts, so they may not be missing.
void TokenFile::read_counts() {
  const fs::path counts = beside(path_, ".counts");
  const bool exists = fs::exists(counts);
  if (!exists && info_.counts_checksum.empty()) return;
  const std::int64_t expected = (count_ + 7) / 8;
  const std::int64_t bytes = exists ? static_cast<std::int64_t>(fs::file_size(counts)) : 0;
  if (!exists || bytes != expected)
    throw FormatError(text(exists ? text("has ", bytes, " bytes") : "is missing", "; ", count_,
                           " tokens have ", expected, " bytes of counts"),
                      {.file = counts.string(), .hint = "Prepare the text again."});
  counts_ = read_file(counts);
  if (std::ssize(counts_) != expected)
    throw FormatError("changed while it was read", {.file = counts.string()});
}

void TokenFile::read(std::int64_t first, std::span<std::int64_t> ids,
                     std::int64_t vocabulary) const {
  if (first < 0 || first > count_ || std::ssize(ids) > count_ - first)
    throw UsageError(
        text("tokens ", first, " to ", first + std::ssize(ids), " of ", count_, " do not exist"),
        {.file = path_.string()});
  const char* from = bytes_ + begin_ + first * width_;
  for (std::size_t i = 0; i < ids.size(); ++i, from += width_) {
    std::uint32_t id = 0;
    std::memcpy(&id, from, static_cast<std::size_t>(width_));
    ids[i] = id;
    if (id >= vocabulary)
      throw FormatError(
          text("token ", first + static_cast<std::int64_t>(i), " has the id ", id,
               ", and the vocabulary has ", vocabulary, " ids"),
          {.file = path_.string(), .hint = "The text was prepared with another tokenizer."});
  }
}

void TokenFile::check_content() const {
  const auto check = [&](std::string_view bytes, const std::string& expected, const char* what,
                         const fs::path& file) {
    if (expected.empty()) return;
    const std::string now = hex_of(checksum_of(bytes));
    if (now == expected) return;
    throw FormatError(text("the ", what, " have the checksum ", now, ", and had ", expected,
                           " when they were written"),
                      {.file = file.string(), .hint = "The file was changed. Prepare it again."});
  };
  check({bytes_ + begin_, static_cast<std::size_t>(size_ - begin_)}, info_.checksum, "tokens",
        path_);
  check(counts_, info_.counts_checksum, "counts", beside(path_, ".counts"));
}

void write_token_file(const fs::path& bin, std::span<const std::int32_t> ids,
                      std::span<const std::int64_t> documents, const TokenFileInfo& info,
                      const std::vector<bool>& counts) {
  if (ids.size() > std::numeric_limits<std::int32_t>::max())
    throw UsageError(text(ids.size(), " tokens: a token file has fewer than 2^31"),
                     {.file = bin.string(), .hint = "Divide the text into several documents."});
  if (!counts.empty() && counts.size() != ids.size())
    throw UsageError(text(counts.size(), " counts for ", ids.size(), " tokens"),
                     {.file = bin.string()});
  const bool small = info.vocabulary > 0 && info.vocabulary <= 65536;
  const Layout& layout = layouts[small ? 0 : 1];
  std::string content(static_cast<std::size_t>(header_bytes), '\0');
  for (const auto& [number, value] : {std::pair<int, std::int32_t>{0, layout.magic},
                                      {1, layout.version},
                                      {2, static_cast<std::int32_t>(ids.size())}})
    std::memcpy(content.data() + 4 * number, &value, 4);
  content.resize(content.size() + ids.size() * static_cast<std::size_t>(layout.width));
  char* to = content.data() + header_bytes;
  for (const std::int32_t id : ids) {
    if (id < 0 || (info.vocabulary > 0 && id >= info.vocabulary))
      throw UsageError(text("the id ", id, " is not below the vocabulary of ", info.vocabulary),
                       {.file = bin.string()});
    std::memcpy(to, &id, static_cast<std::size_t>(layout.width));  // little-endian
    to += layout.width;
  }
  nlohmann::ordered_json description = {
      {"format", "trestle token file 1"},
      {"tokenizer", info.tokenizer},
      {"vocabulary", info.vocabulary},
      {"tokens", ids.size()},
      {"documents", documents.size()},
      {"checksum", hex_of(checksum_of(std::string_view(content).substr(header_bytes)))},
      {"sources", info.sources}};
  if (info.end_token) description["end_token"] = *info.end_token;
  const std::string bits = bits_of(counts);
  if (!bits.empty()) description["counts_checksum"] = hex_of(checksum_of(bits));
  // A file of an earlier text does not belong to these tokens.
  if (bits.empty())
    fs::remove(beside(bin, ".counts"));
  else
    write_file(beside(bin, ".counts"), bits);
  constexpr auto replace = nlohmann::json::error_handler_t::replace;  // names that are not UTF-8
  write_file(beside(bin, ".documents"),
             {reinterpret_cast<const char*>(documents.data()), documents.size() * 8});
  write_file(beside(bin, ".json"), description.dump(2, ' ', false, replace) + "\n");
  write_file(bin, content);
}

}  // namespace trestle::tokens
