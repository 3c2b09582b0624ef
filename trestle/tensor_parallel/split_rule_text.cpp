#include "trestle/tensor_parallel/split_rule_text.h"

#include <array>
#include <charconv>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::tensor_parallel {

namespace {

struct SplitWord {
  std::string_view name;
  Split split;
};
constexpr std::array split_words = {
    SplitWord{"columns", Split::Columns}, SplitWord{"columns_gathered", Split::ColumnsGathered},
    SplitWord{"rows", Split::Rows}, SplitWord{"vocabulary", Split::Vocabulary},
    SplitWord{"channels", Split::Channels}};

constexpr const char* rule_hint =
    "A rule is a layer's name, a word for its split, and where the layer needs them its parts and "
    "heads: \"net1 columns\" or \"blocks.*.qkv columns parts=64+64+64 heads=4\".";

std::int64_t parse_size(std::string_view digits, const std::string& word) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 1)
    throw UsageError(text("'", word, "' needs whole numbers above 0"), {.hint = rule_hint});
  return number;
}

void set_option(const std::string& word, SplitRule* rule) {
  const std::size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
  if (name == "heads" && equals != std::string::npos && rule->heads == 0) {
    rule->heads = parse_size(value, word);
  } else if (name == "parts" && equals != std::string::npos && rule->parts.empty()) {
    for (const std::string& part : trestle::split(value, '+'))
      rule->parts.push_back(parse_size(part, word));
  } else {
    throw UsageError(text("'", word, "' is not an option of a rule, or is given twice"),
                     {.hint = rule_hint});
  }
}

}  // namespace

SplitRule parse_split_rule(const std::string& words) {
  std::istringstream in(words);
  std::vector<std::string> found;
  for (std::string word; in >> word;) found.push_back(word);
  try {
    if (found.size() < 2)
      throw UsageError("a rule needs the name of a layer and a word for its split",
                       {.hint = rule_hint});
    if (words.find(',') != std::string::npos)
      throw UsageError("a rule has no comma",
                       {.hint = "Write each rule as a text of its own: [\"up columns\", \"down "
                                "rows\"]; parts are joined by +."});
    SplitRule rule{.layer = found[0], .split = choose("split", found[1], split_words).split};
    for (std::size_t i = 2; i < found.size(); ++i) set_option(found[i], &rule);
    return rule;
  } catch (UsageError& error) {
    error.add_context(text("in the rule \"", words, "\""));
    throw;
  }
}

std::string to_text(const SplitRule& rule) {
  std::string words = rule.layer;
  for (const SplitWord& word : split_words)
    if (word.split == rule.split) words += text(" ", word.name);
  if (!rule.parts.empty()) words += " parts=" + join(rule.parts, "+");
  if (rule.heads > 0) words += text(" heads=", rule.heads);
  return words;
}

}  // namespace trestle::tensor_parallel
