#include "trestle/tokens/tokenizers/gguf_tokens.h"

#include <string_view>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/tokens/tokenizers/bpe_tokenizer.h"
#include "trestle/tokens/tokenizers/split_patterns.h"
#include "trestle/tokens/tokenizers/vocabulary.h"

namespace trestle::tokens {
namespace {

struct PreTokenizer {
  std::string name;
  std::vector<std::string_view> patterns;
  bool whole_words = false;  // words that are tokens do not merge
  bool nfc = false;
  bool adds_bos = false;
};

std::vector<PreTokenizer> pre_tokenizers() {
  const PreTokenizer gpt2 = {.name = "gpt-2", .patterns = {gpt2_pattern}};
  const PreTokenizer llama3 = {
      .name = "llama-bpe", .patterns = {llama3_pattern}, .whole_words = true, .adds_bos = true};
  const PreTokenizer smollm = {.name = "smollm", .patterns = {digit_pattern, gpt2_pattern}};
  const PreTokenizer qwen2 = {.name = "qwen2", .patterns = {qwen2_pattern}, .nfc = true};
  std::vector<PreTokenizer> all;
  const auto add = [&](PreTokenizer entry, std::string_view name) {
    entry.name = name;
    all.push_back(std::move(entry));
  };
  for (const char* name : {"gpt-2", "gpt2", "phi-2"}) add(gpt2, name);
  for (const char* name : {"llama-bpe", "llama3", "llama-v3"}) add(llama3, name);
  for (const char* name : {"smollm", "starcoder"}) add(smollm, name);
  for (const char* name : {"qwen2", "deepseek-r1-qwen"}) add(qwen2, name);
  return all;
}

// The numbers of GGUF's token_type.
enum class GgufTokenType : std::int32_t { Unknown = 2, Control = 3, UserDefined = 4, Unused = 5 };

void add_gguf_token(const GgufTokens& from, std::size_t index, Vocabulary* vocabulary,
                    BpeParts* parts) {
  const std::string& spelling = from.tokens[index];
  const auto id = static_cast<Id>(index);
  const auto type =
      static_cast<GgufTokenType>(from.token_type.empty() ? 1 : from.token_type[index]);
  switch (type) {
    case GgufTokenType::Unknown:
    case GgufTokenType::Control:
      vocabulary->add_other(spelling, id);
      parts->added.push_back({.id = id, .text = spelling, .special = true});
      break;
    case GgufTokenType::UserDefined:
      vocabulary->add_other(spelling, id);
      parts->added.push_back({.id = id, .text = spelling});
      break;
    case GgufTokenType::Unused:
      vocabulary->add_other(spelling, id);
      break;
    default:
      vocabulary->add_word(spelling, id);
  }
}

Id checked_token(const GgufTokens& from, Id id, std::string_view key) {
  if (id >= 0 && static_cast<std::size_t>(id) < from.tokens.size()) return id;
  throw FormatError(text("tokenizer.ggml.", key, " is ", id, ", but the file has ",
                         from.tokens.size(), " tokens and adds this one to each text"),
                    {.file = from.file});
}

}  // namespace

BpeParts gguf_parts(const GgufTokens& from) {
  if (from.model != "gpt2") {
    throw UsageError(
        text("tokenizer.ggml.model is '", from.model,
             "', which trestle does not read from a GGUF file"),
        {.file = from.file,
         .hint = "Supported is 'gpt2', byte-level BPE. Read another tokenizer from its "
                 "own file (tokenizer.json or tokenizer.model)."});
  }
  const std::vector<PreTokenizer> known = pre_tokenizers();
  const PreTokenizer& pre = choose("pre-tokenizer (tokenizer.ggml.pre)", from.pre, known);
  if (!from.token_type.empty() && from.token_type.size() != from.tokens.size()) {
    throw FormatError(text("tokenizer.ggml.token_type has ", from.token_type.size(),
                           " elements, tokenizer.ggml.tokens has ", from.tokens.size()),
                      {.file = from.file});
  }
  BpeParts parts;
  parts.source = from.file;
  Vocabulary vocabulary(from.file);
  vocabulary.reserve(from.tokens.size());
  for (std::size_t i = 0; i < from.tokens.size(); ++i) {
    add_gguf_token(from, i, &vocabulary, &parts);
  }
  for (const std::string& merge : from.merges) vocabulary.add_merge_line(merge);
  for (const std::string_view pattern : pre.patterns) {
    parts.stages.push_back({.pattern = std::string(pattern)});
  }
  if (pre.nfc) parts.normalizations = {Normalization::Nfc};
  parts.ignore_merges = pre.whole_words;
  if (from.add_bos_token.value_or(pre.adds_bos)) {
    parts.prefix = {checked_token(from, from.bos_token_id, "bos_token_id")};
  }
  if (from.add_eos_token.value_or(false)) {
    parts.suffix = {checked_token(from, from.eos_token_id, "eos_token_id")};
  }
  vocabulary.finish(&parts);
  parts.tokens.resize(from.tokens.size());
  return parts;
}

std::unique_ptr<Tokenizer> gguf_tokenizer(const GgufTokens& from) {
  return std::make_unique<BpeTokenizer>(gguf_parts(from));
}

}  // namespace trestle::tokens
