#include "trestle/tokens/tokenizers/count_words.h"

#include <algorithm>
#include <unordered_map>

#include "trestle/tokens/tokenizers/split_pattern.h"
#include "trestle/tokens/tokenizers/split_patterns.h"
#include "trestle/tokens/tokenizers/split_syntax.h"
#include "trestle/tokens/tokenizers/valid_utf8.h"

namespace trestle::tokens {
namespace {

// Looks words up without copying them.
struct WordHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view word) const {
    return std::hash<std::string_view>()(word);
  }
};

}  // namespace

std::vector<std::pair<std::string, std::int64_t>> count_words(
    std::span<const std::string_view> texts) {
  const SplitPattern pattern(split_syntax(gpt2_pattern, ""), "");
  SplitPattern::Workspace workspace(pattern);
  std::unordered_map<std::string, std::int64_t, WordHash, std::equal_to<>> counts;
  std::string storage;
  for (const std::string_view text : texts) {
    const std::string_view valid = valid_utf8(text, &storage);
    SplitPattern::Match match;
    while (match.end < valid.size() && pattern.find(valid, match.end, &workspace, &match)) {
      const std::string_view word = valid.substr(match.begin, match.end - match.begin);
      const auto known = counts.find(word);
      if (known != counts.end()) {
        ++known->second;
      } else {
        counts.emplace(word, 1);
      }
    }
  }
  std::vector<std::pair<std::string, std::int64_t>> sorted(counts.begin(), counts.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace trestle::tokens
