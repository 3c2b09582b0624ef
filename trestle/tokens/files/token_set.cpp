#include "trestle/tokens/files/token_set.h"

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/fnv1a.h"
#include "trestle/base/text.h"

namespace trestle::tokens {

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_of_split(const fs::path& folder, const std::string& split) {
  const std::string shorter = split == "validation" ? "val" : split;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".bin" && entry.path().filename().string().starts_with(shorter))
      found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

TokenSet::TokenSet(const fs::path& path, const std::string& split) {
  std::vector<fs::path> paths = {path};
  if (fs::is_directory(path)) paths = files_of_split(path, split);
  if (!fs::exists(path))
    throw UsageError(text(path.string(), ": there is no such folder of tokens"),
                     {.hint = text("`trestle text prepare TEXT --tokenizer TOKENIZER --out ",
                                   path.string(), "` writes one.")});
  if (paths.empty())
    throw UsageError(text(path.string(), ": has no token file '", split, "*.bin'"),
                     {.hint = "`trestle text prepare` writes them."});
  begins_ = {0};
  for (const fs::path& file : paths) {
    files_.push_back(std::make_unique<TokenFile>(file));
    const TokenFile& added = *files_.back();
    const TokenFileInfo &first = files_[0]->info(), &info = added.info();
    if (info.tokenizer != first.tokenizer || info.vocabulary != first.vocabulary)
      throw FormatError(text("was written with the tokenizer '", info.tokenizer, "', and ",
                             paths[0].filename().string(), " with '", first.tokenizer, "'"),
                        {.file = file.string()});
    for (const std::int64_t begin : added.documents()) documents_.push_back(begins_.back() + begin);
    begins_.push_back(begins_.back() + added.count());
    has_counts_ = has_counts_ || added.has_counts();
  }
  documents_.push_back(begins_.back());
}

// The last file that begins at a token or before it: files without tokens are skipped.
TokenSet::Place TokenSet::place_of(std::int64_t token) const {
  const auto file = static_cast<std::size_t>(
      std::upper_bound(begins_.begin(), begins_.end() - 1, token) - begins_.begin() - 1);
  return {file, token - begins_[file]};
}

void TokenSet::read(std::int64_t first, std::span<std::int64_t> ids,
                    std::int64_t vocabulary) const {
  if (first < 0 || first > count() || std::ssize(ids) > count() - first)
    throw UsageError(
        text("tokens ", first, " to ", first + std::ssize(ids), " of ", count(), " do not exist"));
  while (!ids.empty()) {
    const Place place = place_of(first);
    const TokenFile& file = *files_[place.file];
    const auto own = static_cast<std::size_t>(
        std::min<std::int64_t>(file.count() - place.token, std::ssize(ids)));
    file.read(place.token, ids.first(own), vocabulary);
    ids = ids.subspan(own);
    first += static_cast<std::int64_t>(own);
  }
}

void TokenSet::mask(std::int64_t first, std::span<std::int64_t> targets) const {
  if (!has_counts_) return;
  for (std::int64_t& target : targets) {
    const Place place = place_of(first++);
    if (!files_[place.file]->target_counts(place.token)) target = -100;
  }
}

void TokenSet::check_content() const {
  for (const auto& file : files_) file->check_content();
}

bool TokenSet::has_checksums() const {
  return std::ranges::none_of(files_,
                              [](const auto& file) { return file->info().checksum.empty(); });
}

std::uint64_t TokenSet::content_hash() const {
  std::string all;
  for (const auto& file : files_) {
    const TokenFileInfo& info = file->info();
    all += text(file->count(), " ", info.checksum, info.counts_checksum, "\n");
  }
  return fnv1a(all);
}

void check_tokenizer(const TokenSet& set, const std::string& hash, const std::string& file) {
  if (set.tokenizer().empty() || set.tokenizer() == hash) return;
  throw UsageError(text("the tokens were written with the tokenizer ", set.tokenizer(),
                        ", and the model's tokenizer is ", hash),
                   {.file = file,
                    .hint = "Prepare the text again with the model's tokenizer: `trestle text "
                            "prepare ... --tokenizer FILE`."});
}

}  // namespace trestle::tokens
