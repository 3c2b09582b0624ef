#include "trestle/tokens/files/prepare.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/random.h"
#include "trestle/base/text.h"
#include "trestle/base/utf8.h"
#include "trestle/tokens/files/documents.h"
#include "trestle/tokens/files/partial_folder.h"
#include "trestle/tokens/files/token_file.h"

namespace trestle::tokens {

namespace {

namespace fs = std::filesystem;

// The token that ends a document. For answers it is the last special token of a turn.
std::optional<std::int64_t> end_of_documents(const Tokenizer& tokenizer,
                                             const PrepareOptions& options) {
  if (options.chat) {
    const std::array turn = {Message{.role = "user", .content = "a"},
                             Message{.role = "assistant", .content = "b"}};
    const std::vector<Id> ids = options.chat->encode(tokenizer, turn);
    const auto last =
        std::find_if(ids.rbegin(), ids.rend(), [&](Id id) { return tokenizer.is_special(id); });
    return last == ids.rend() ? std::nullopt : std::optional<std::int64_t>(*last);
  }
  if (options.end_token) return *options.end_token;
  const std::vector<Id> suffix = tokenizer.suffix();
  return suffix.empty() ? std::nullopt : std::optional<std::int64_t>(suffix.back());
}

// One split's tokens, written as files of at most shard_tokens.
class ShardWriter {
 public:
  ShardWriter(fs::path folder, std::string split, const PrepareOptions& options,
              const Tokenizer& tokenizer, const std::vector<std::string>& sources)
      : folder_(std::move(folder)),
        split_(std::move(split)),
        most_(options.shard_tokens),
        has_counts_(!options.prompt_key.empty()),
        info_{.tokenizer = tokenizer.hash(),
              .vocabulary = tokenizer.size(),
              .end_token = end_of_documents(tokenizer, options),
              .sources = sources} {}

  // The first `prompt` tokens are no targets.
  void add(std::span<const Id> document, std::int64_t prompt) {
    if (!ids_.empty() && std::ssize(ids_) + std::ssize(document) > most_) finish();
    begins_.push_back(std::ssize(ids_));
    ids_.insert(ids_.end(), document.begin(), document.end());
    if (has_counts_) {
      counts_.resize(counts_.size() + static_cast<std::size_t>(prompt), false);
      counts_.resize(ids_.size(), true);
    }
    tokens_ += std::ssize(document);
  }

  void finish() {
    if (ids_.empty()) return;
    std::array<char, 24> number{};
    std::snprintf(number.data(), number.size(), "_%06lld.bin", static_cast<long long>(files_++));
    write_token_file(folder_ / (split_ + number.data()), ids_, begins_, info_, counts_);
    ids_.clear();
    begins_.clear();
    counts_.clear();
  }

  std::int64_t tokens() const { return tokens_; }
  std::int64_t files() const { return files_; }

 private:
  fs::path folder_;
  std::string split_;
  std::int64_t most_;
  bool has_counts_;
  TokenFileInfo info_;
  std::vector<Id> ids_;
  std::vector<std::int64_t> begins_;
  std::vector<bool> counts_;
  std::int64_t tokens_ = 0, files_ = 0;
};

struct EncodedDocument {
  std::vector<Id> ids;
  std::int64_t prompt = 0;  // the first tokens, which are no targets
};

// Documents are encoded in groups, each group by all threads, and written in their order.
class Preparer {
 public:
  Preparer(const Tokenizer& tokenizer, const PrepareOptions& options, const fs::path& folder,
           const std::vector<std::string>& sources, std::int64_t all_bytes)
      : tokenizer_(tokenizer),
        options_(options),
        all_bytes_(all_bytes),
        training_(folder, "train", options, tokenizer, sources),
        validation_(folder, "validation", options, tokenizer, sources) {}

  void add(Document document) {
    if (document.text.empty()) {
      ++result_.empty_documents;
      return;
    }
    if (!is_utf8(document.text) || !is_utf8(document.prompt)) ++result_.repaired_documents;
    constexpr std::size_t group_bytes = std::size_t{16} << 20;
    waiting_bytes_ += document.prompt.size() + document.text.size();
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
  // A prompt is encoded by itself, as it is when the model answers it.
  EncodedDocument encode(const Document& document) const {
    if (options_.chat) return encode_turn(document);
    std::vector<Id> ids = tokenizer_.prefix();
    const auto add = [&](const std::vector<Id>& more) {
      ids.insert(ids.end(), more.begin(), more.end());
    };
    if (!document.prompt.empty()) add(tokenizer_.encode(document.prompt));
    const std::int64_t prompt = options_.prompt_key.empty() ? 0 : std::ssize(ids);
    add(tokenizer_.encode(document.text));
    add(tokenizer_.suffix());
    if (options_.end_token) ids.push_back(*options_.end_token);
    return {.ids = std::move(ids), .prompt = prompt};
  }

  EncodedDocument encode_turn(const Document& document) const {
    const Message question{.role = "user", .content = document.prompt};
    const std::vector<Id> prompt =
        options_.chat->encode(tokenizer_, std::span(&question, 1), AnswerBegin::Write);
    const std::array turn = {question, Message{.role = "assistant", .content = document.text}};
    std::vector<Id> ids = options_.chat->encode(tokenizer_, turn);
    const bool continues =
        ids.size() > prompt.size() && std::equal(prompt.begin(), prompt.end(), ids.begin());
    if (!continues)
      throw UsageError("the chat template begins an answer in another way than it writes one",
                       {.hint = "'answer' must be the begin of 'message assistant'."});
    return {.ids = std::move(ids), .prompt = std::ssize(prompt)};
  }

  void encode_group() {
    std::vector<EncodedDocument> encoded(waiting_.size());
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
    for (EncodedDocument& document : encoded) place(std::move(document));
    result_.bytes += static_cast<std::int64_t>(waiting_bytes_);
    waiting_.clear();
    waiting_bytes_ = 0;
    if (options_.progress && !options_.progress(result_.bytes, all_bytes_))
      throw StateError("the preparation was stopped; nothing was written");
  }

  // Keeps the last document back, because a single one is divided.
  void place(EncodedDocument document) {
    if (document.ids.empty()) {
      ++result_.empty_documents;
      return;
    }
    if (last_) write(*last_);
    last_ = std::move(document);
    ++result_.documents;
  }

  void write(const EncodedDocument& document) {
    Random random(keyed_seed(options_.seed, -1, -1, written_++));
    const bool validates = options_.validation > 0 && random.uniform() < options_.validation;
    (validates ? validation_ : training_).add(document.ids, document.prompt);
  }

  void write_last() {
    const auto& [ids, prompt] = *last_;
    const double share = options_.validation;
    if (result_.documents > 1) {
      const bool needs = share > 0 && validation_.tokens() == 0;
      if (needs)
        validation_.add(ids, prompt);
      else if (training_.tokens() == 0)
        training_.add(ids, prompt);
      else
        write(*last_);
      return;
    }
    // A single pair is not divided, because its end alone is no answer to a prompt.
    auto kept = static_cast<std::size_t>(static_cast<double>(ids.size()) * (1 - share));
    if (kept == 0 || !options_.prompt_key.empty()) kept = ids.size();
    training_.add(std::span(ids).first(kept), prompt);
    if (kept < ids.size()) validation_.add(std::span(ids).subspan(kept), 0);
  }

  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
  std::int64_t all_bytes_;
  ShardWriter training_, validation_;
  std::vector<Document> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::optional<EncodedDocument> last_;
  std::int64_t written_ = 0;
  Prepared result_;
};

// Whether a folder has the files of prepare() and no other.
bool only_token_files(const fs::path& folder) {
  if (!fs::is_directory(folder) || !fs::exists(folder / "train_000000.bin")) return false;
  constexpr std::array endings = {".bin", ".json", ".documents", ".counts"};
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == "tokenizer" && entry.is_directory()) continue;
    const bool split = name.starts_with("train_") || name.starts_with("validation_");
    if (!split || std::find(endings.begin(), endings.end(), entry.path().extension().string()) ==
                      endings.end())
      return false;
  }
  return true;
}

void check(const PrepareOptions& options, const Tokenizer& tokenizer) {
  if (!(options.validation >= 0 && options.validation < 1))
    throw UsageError(text("the validation share is ", options.validation,
                          ": it must be at least 0 and below 1"));
  if (options.shard_tokens < 1 || options.shard_tokens > (std::int64_t{1} << 30))
    throw UsageError(
        text("shards of ", options.shard_tokens, " tokens: from 1 to 2^30 are possible"));
  if (options.threads < 0) throw UsageError(text(options.threads, " threads"));
  if (options.chat && options.prompt_key.empty())
    throw UsageError("a chat template is for pairs of prompts and answers",
                     {.hint = "Set the key of the prompts (--prompt-key)."});
  if (options.end_token && (*options.end_token < 0 || *options.end_token >= tokenizer.size()))
    throw UsageError(text("the end token ", *options.end_token, " is not below the ",
                          tokenizer.size(), " ids of the tokenizer"));
  const fs::path& out = options.out;
  if (out.empty()) throw UsageError("no folder was named for the tokens");
  if (!fs::exists(out) || (fs::is_directory(out) && fs::is_empty(out))) return;
  const bool tokens = only_token_files(out);
  if (tokens && options.overwrite == Overwrite::Allow) return;
  throw UsageError(
      text(out.string(), ": exists already"),
      {.hint = tokens ? "Choose another folder, or allow to overwrite it (--overwrite)."
                      : "Choose another folder: this one has other files than token files."});
}

template <class Call>
auto with_file_errors(const Call& call) {
  try {
    return call();
  } catch (const fs::filesystem_error& error) {
    throw FileError(error.code().message(), {.file = error.path1().string()});
  }
}

}  // namespace

std::string read_sources(const std::vector<std::string>& sources, const PrepareOptions& options) {
  return with_file_errors([&] {
    std::string all;
    for (const SourceFile& file : find_sources(sources, options.out))
      read_documents(file, options, [&](const Document& one) { all += one.prompt + one.text; });
    return all;
  });
}

Prepared prepare(const std::vector<std::string>& sources, const Tokenizer& tokenizer,
                 const PrepareOptions& options) {
  return with_file_errors([&] {
    if (!options.out.empty()) clean_up_after_killed(options.out);
    check(options, tokenizer);
    const std::vector<SourceFile> files = find_sources(sources, options.out);
    std::int64_t bytes = 0;
    for (const SourceFile& file : files) bytes += file.bytes;
    PartialFolder partial(options.out);
    if (options.save_tokenizer) {
      fs::create_directories(partial.path() / "tokenizer");
      options.save_tokenizer(partial.path() / "tokenizer");
      // Chats with the trained model are written as the pairs were.
      if (options.chat)
        write_file(partial.path() / "tokenizer" / "chat_template.txt", options.chat->words());
    }
    Preparer preparer(tokenizer, options, partial.path(), sources, bytes);
    for (const SourceFile& file : files)
      read_documents(file, options, [&](Document one) { preparer.add(std::move(one)); });
    const Prepared result = preparer.finish();
    partial.finish(options.overwrite);
    return result;
  });
}

}  // namespace trestle::tokens
