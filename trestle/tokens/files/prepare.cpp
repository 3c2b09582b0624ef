#include "trestle/tokens/files/prepare.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/random.h"
#include "trestle/base/text.h"
#include "trestle/tokens/files/documents.h"
#include "trestle/tokens/files/token_file.h"

namespace trestle::tokens {

namespace {

namespace fs = std::filesystem;

// One split's tokens, written as files of at most shard_tokens.
class ShardWriter {
 public:
  ShardWriter(fs::path folder, std::string split, const PrepareOptions& options,
              const Tokenizer& tokenizer)
      : folder_(std::move(folder)),
        split_(std::move(split)),
        most_(options.shard_tokens),
        info_{.tokenizer = tokenizer.hash(), .vocabulary = tokenizer.size()} {}

  void add(std::span<const Id> document) {
    if (!ids_.empty() && std::ssize(ids_) + std::ssize(document) > most_) finish();
    begins_.push_back(std::ssize(ids_));
    ids_.insert(ids_.end(), document.begin(), document.end());
    tokens_ += std::ssize(document);
  }

  void finish() {
    if (ids_.empty()) return;
    std::array<char, 24> number{};
    std::snprintf(number.data(), number.size(), "_%06lld.bin", static_cast<long long>(files_++));
    write_token_file(folder_ / (split_ + number.data()), ids_, begins_, info_);
    ids_.clear();
    begins_.clear();
  }

  std::int64_t tokens() const { return tokens_; }
  std::int64_t files() const { return files_; }

 private:
  fs::path folder_;
  std::string split_;
  std::int64_t most_;
  TokenFileInfo info_;
  std::vector<Id> ids_;
  std::vector<std::int64_t> begins_;
  std::int64_t tokens_ = 0, files_ = 0;
};

// Documents are encoded in groups, each group by all threads, and written in their order.
class Preparer {
 public:
  Preparer(const Tokenizer& tokenizer, const PrepareOptions& options, const fs::path& folder,
           std::int64_t all_bytes)
      : tokenizer_(tokenizer),
        options_(options),
        all_bytes_(all_bytes),
        training_(folder, "train", options, tokenizer),
        validation_(folder, "validation", options, tokenizer) {}

  void add(std::string document) {
    if (document.empty()) {
      ++result_.empty_documents;
      return;
    }
    constexpr std::size_t group_bytes = std::size_t{16} << 20;
    waiting_bytes_ += document.size();
    waiting_.push_back(std::move(document));
    if (waiting_bytes_ >= group_bytes) encode_group();
  }

  Prepared finish() {
    encode_group();
    if (result_.documents == 0) throw UsageError("the sources have no text");
    write_last();
    training_.finish();
    validation_.finish();
    result_.training_tokens = training_.tokens();
    result_.validation_tokens = validation_.tokens();
    result_.files = training_.files() + validation_.files();
    return result_;
  }

 private:
  std::vector<Id> encode(const std::string& document) const {
    std::vector<Id> ids = tokenizer_.prefix();
    const std::vector<Id> own = tokenizer_.encode(document);
    ids.insert(ids.end(), own.begin(), own.end());
    for (const Id id : tokenizer_.suffix()) ids.push_back(id);
    if (options_.end_token) ids.push_back(*options_.end_token);
    return ids;
  }

  void encode_group() {
    std::vector<std::vector<Id>> encoded(waiting_.size());
    std::atomic<std::size_t> next = 0;
    std::exception_ptr failure;
    std::mutex mutex;
    const auto work = [&] {
      try {
        for (std::size_t i = next++; i < waiting_.size(); i = next++)
          encoded[i] = encode(waiting_[i]);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = waiting_.size();
      }
    };
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    const int threads = options_.threads > 0 ? options_.threads : cores;
    std::vector<std::jthread> others;
    for (int i = 1; i < std::min<int>(threads, static_cast<int>(waiting_.size())); ++i)
      others.emplace_back(work);
    work();
    others.clear();
    if (failure) std::rethrow_exception(failure);
    for (std::vector<Id>& ids : encoded) place(std::move(ids));
    result_.bytes += static_cast<std::int64_t>(waiting_bytes_);
    waiting_.clear();
    waiting_bytes_ = 0;
    if (options_.progress && !options_.progress(result_.bytes, all_bytes_))
      throw StateError("the preparation was stopped; nothing was written");
  }

  // Keeps the last document back, because a single one is divided.
  void place(std::vector<Id> ids) {
    if (ids.empty()) {
      ++result_.empty_documents;
      return;
    }
    if (last_) write(*last_);
    last_ = std::move(ids);
    ++result_.documents;
  }

  void write(const std::vector<Id>& ids) {
    Random random(keyed_seed(options_.seed, -1, -1, written_++));
    const bool validates = options_.validation > 0 && random.uniform() < options_.validation;
    (validates ? validation_ : training_).add(ids);
  }

  void write_last() {
    const std::vector<Id>& ids = *last_;
    const double share = options_.validation;
    if (result_.documents > 1) {
      const bool needs = share > 0 && validation_.tokens() == 0;
      if (needs)
        validation_.add(ids);
      else if (training_.tokens() == 0)
        training_.add(ids);
      else
        write(ids);
      return;
    }
    const auto kept = static_cast<std::size_t>(static_cast<double>(ids.size()) * (1 - share));
    training_.add(std::span(ids).first(kept == 0 ? ids.size() : kept));
    if (kept > 0 && kept < ids.size()) validation_.add(std::span(ids).subspan(kept));
  }

  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
  std::int64_t all_bytes_;
  ShardWriter training_, validation_;
  std::vector<std::string> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::optional<std::vector<Id>> last_;
  std::int64_t written_ = 0;
  Prepared result_;
};

void check(const PrepareOptions& options) {
  if (!(options.validation >= 0 && options.validation < 1))
    throw UsageError(text("a validation share of ", options.validation, " is not from 0 to 1"));
  if (options.shard_tokens < 1 || options.shard_tokens > (std::int64_t{1} << 30))
    throw UsageError(
        text("shards of ", options.shard_tokens, " tokens: from 1 to 2^30 are possible"));
  const fs::path& out = options.out;
  if (out.empty()) throw UsageError("no folder was named for the tokens");
  if (!fs::exists(out) || (fs::is_directory(out) && fs::is_empty(out))) return;
  const bool tokens = fs::is_directory(out) && fs::exists(out / "train_000000.bin");
  if (tokens && options.overwrite == Overwrite::Allow) return;
  throw UsageError(
      text(out.string(), ": exists already"),
      {.hint = tokens ? "Choose another folder, or allow to overwrite it (--overwrite)."
                      : "Choose another folder."});
}

}  // namespace

std::string read_sources(const std::vector<std::string>& sources, const PrepareOptions& options) {
  std::string all;
  for (const SourceFile& file : find_sources(sources))
    read_documents(file, options, [&](std::string document) { all += document; });
  return all;
}

Prepared prepare(const std::vector<std::string>& sources, const Tokenizer& tokenizer,
                 const PrepareOptions& options) {
  check(options);
  const std::vector<SourceFile> files = find_sources(sources);
  std::int64_t bytes = 0;
  for (const SourceFile& file : files) bytes += file.bytes;
  fs::path partial = options.out;
  if (!partial.has_filename()) partial = partial.parent_path();  // "data/plays/"
  const fs::path out = partial;
  partial += ".partial";
  fs::remove_all(partial);
  try {
    fs::create_directories(partial);
    if (options.save_tokenizer) {
      fs::create_directories(partial / "tokenizer");
      options.save_tokenizer(partial / "tokenizer");
    }
    Preparer preparer(tokenizer, options, partial, bytes);
    for (const SourceFile& file : files)
      read_documents(file, options, [&](std::string one) { preparer.add(std::move(one)); });
    const Prepared result = preparer.finish();
    fs::remove_all(out);
    fs::rename(partial, out);
    return result;
  } catch (const fs::filesystem_error& error) {
    std::error_code none;
    fs::remove_all(partial, none);
    throw FileError(error.code().message(), {.file = error.path1().string()});
  } catch (...) {
    std::error_code none;
    fs::remove_all(partial, none);
    throw;
  }
}

}  // namespace trestle::tokens
