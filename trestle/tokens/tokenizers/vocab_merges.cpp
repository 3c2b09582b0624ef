#include "trestle/tokens/tokenizers/vocab_merges.h"

#include <algorithm>

#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/tokens/tokenizers/bpe_tokenizer.h"
#include "trestle/tokens/tokenizers/json_field.h"
#include "trestle/tokens/tokenizers/split_patterns.h"
#include "trestle/tokens/tokenizers/vocabulary.h"

namespace trestle::tokens {

std::unique_ptr<Tokenizer> read_vocab_merges(const std::filesystem::path& vocabulary,
                                             const std::filesystem::path& merges) {
  return parse_vocab_merges(read_text_file(vocabulary), read_text_file(merges),
                            vocabulary.string());
}

std::unique_ptr<Tokenizer> parse_vocab_merges(std::string_view vocabulary_json,
                                              std::string_view merges, const std::string& file) {
  const nlohmann::json json = parse_json(vocabulary_json, file);
  const JsonField root(json, file);
  Vocabulary vocabulary(file);
  vocabulary.reserve(root.object().size());
  for (const auto& [spelling, id] : root.object().items()) {
    if (!id.is_number_integer()) root.invalid(text("has no integer for '", spelling, "'"));
    vocabulary.add_word(spelling, id.get<std::int64_t>());
  }
  while (!merges.empty()) {
    const std::size_t end = std::min(merges.find('\n'), merges.size());
    std::string_view line = merges.substr(0, end);
    merges.remove_prefix(std::min(end + 1, merges.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    vocabulary.add_merge_line(line);
  }
  BpeParts parts;
  parts.source = file;
  parts.stages = {{.pattern = std::string(gpt2_pattern)}};
  constexpr std::string_view end_of_text = "<|endoftext|>";
  const Id id = vocabulary.find(end_of_text);
  if (id >= 0) {
    parts.added = {{.id = id, .text = std::string(end_of_text), .special = true}};
  }
  vocabulary.finish(&parts);
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace trestle::tokens
