#include "trestle/generate/write_text.h"

#include <algorithm>

#include "trestle/tokens/stream_decoder.h"

namespace trestle::generate {

namespace {

// Releases text that cannot become a stop word any more.
class StopWords {
 public:
  explicit StopWords(const std::vector<std::string>& words) : words_(words) {}

  // The text to release, and whether a stop word was found behind it.
  std::string add(const std::string& more) {
    held_ += more;
    std::size_t first = std::string::npos;
    for (const std::string& word : words_)
      if (!word.empty()) first = std::min(first, held_.find(word));
    if (first != std::string::npos) {
      found_ = true;
      return held_.substr(0, first);
    }
    std::size_t kept = 0;
    for (const std::string& word : words_)
      for (std::size_t size = std::min(held_.size(), word.size()); size > kept; --size)
        if (held_.ends_with(std::string_view(word).substr(0, size))) kept = size;
    const std::string released = held_.substr(0, held_.size() - kept);
    held_.erase(0, released.size());
    return released;
  }
  std::string rest() const { return found_ ? "" : held_; }
  bool found() const { return found_; }

 private:
  const std::vector<std::string>& words_;
  std::string held_;
  bool found_ = false;
};

}  // namespace

std::vector<std::int64_t> prompt_ids(const tokens::Tokenizer& tokenizer, std::string_view text,
                                     tokens::Specials specials) {
  const std::vector<tokens::Id> prefix = tokenizer.prefix();
  std::vector<std::int64_t> ids(prefix.begin(), prefix.end());
  for (const tokens::Id id : tokenizer.encode(text, specials)) ids.push_back(id);
  return ids;
}

std::vector<Written> write_batch(const LanguageModel& model, const tokens::Tokenizer& tokenizer,
                                 const std::vector<Prompt>& prompts, const WriteOptions& options,
                                 const std::function<void(std::size_t, const Written&)>& on_end) {
  struct Writer {
    StopWords stop;
    tokens::StreamDecoder decoder;
  };
  std::vector<Written> all(prompts.size());
  std::vector<Writer> writers;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    writers.push_back({StopWords(options.stop_words), tokens::StreamDecoder(tokenizer)});
  const auto release = [&](std::size_t text, const std::string& words) {
    all[text].text += words;
    return words.empty() || !options.on_text || options.on_text(text, words);
  };
  GenerateOptions inner = options.generate;
  inner.on_token = [&](std::size_t text, std::int64_t id) {
    if (options.generate.on_token && !options.generate.on_token(text, id)) return false;
    auto& [stop, decoder] = writers[text];
    const bool known = id < tokenizer.size();
    const bool goes_on =
        release(text, stop.add(known ? decoder.add(static_cast<tokens::Id>(id)) : ""));
    return goes_on && !stop.found();
  };
  generate_batch(model, prompts, inner, [&](std::size_t text, const Generated& generated) {
    auto& [stop, decoder] = writers[text];
    all[text].generated = generated;
    if (!stop.found()) {
      const std::string last = stop.add(decoder.finish());
      release(text, last + stop.rest());
    }
    if (stop.found()) all[text].generated.ended = Ended::StopWord;
    if (on_end) on_end(text, all[text]);
  });
  return all;
}

Written write_text(const LanguageModel& model, const tokens::Tokenizer& tokenizer,
                   const std::vector<std::int64_t>& prompt, const WriteOptions& options) {
  return write_batch(model, tokenizer, {{prompt, options.generate.text_number}}, options).front();
}

}  // namespace trestle::generate
