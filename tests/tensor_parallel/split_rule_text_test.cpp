#include "trestle/tensor_parallel/split_rule_text.h"

#include <gmock/gmock.h>

#include <random>

#include "trestle/base/error.h"

namespace trestle::tensor_parallel {
namespace {

using ::testing::HasSubstr;

TEST(SplitRuleText, ReadsNamesSplitsPartsAndHeads) {
  const SplitRule rule = parse_split_rule("  blocks.*.qkv  columns parts=64+32+32 heads=4 ");
  EXPECT_EQ(rule.layer, "blocks.*.qkv");
  EXPECT_EQ(rule.split, Split::Columns);
  EXPECT_EQ(rule.parts, (std::vector<std::int64_t>{64, 32, 32}));
  EXPECT_EQ(rule.heads, 4);
  EXPECT_EQ(parse_split_rule("embed vocabulary").split, Split::Vocabulary);
}

TEST(SplitRuleText, WrittenRulesAreReadAgain) {
  for (const char* words :
       {"a columns", "b.c columns_gathered", "*.down rows", "embed vocabulary", "norm channels",
        "qkv columns parts=1+2 heads=1", "qkv rows parts=9223372036854775807"})
    EXPECT_EQ(to_text(parse_split_rule(words)), words);
}

TEST(SplitRuleText, OtherWordsAreRefused) {
  const auto refusal = [](const std::string& words) {
    try {
      parse_split_rule(words);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal(""), HasSubstr("needs the name of a layer"));
  EXPECT_THAT(refusal("net1"), HasSubstr("needs the name of a layer"));
  EXPECT_THAT(refusal("net1 colums"), HasSubstr("did you mean 'columns'"));
  EXPECT_THAT(refusal("net1 columns heads=0"), HasSubstr("'heads=0' needs whole numbers above 0"));
  EXPECT_THAT(refusal("net1 columns parts=1++2"), HasSubstr("needs whole numbers"));
  EXPECT_THAT(refusal("net1 columns parts=99999999999999999999"), HasSubstr("needs whole numbers"));
  EXPECT_THAT(refusal("net1 columns heads=2 heads=2"), HasSubstr("is given twice"));
  EXPECT_THAT(refusal("net1 columns heads"), HasSubstr("'heads' is not an option"));
  EXPECT_THAT(refusal("net1 columns,net2 rows"), HasSubstr("each rule as a text of its own"));
  EXPECT_THAT(refusal("net1 columns rows"), HasSubstr("in the rule \"net1 columns rows\""));
}

// Any bytes give a rule that is written and read again, or a UsageError.
TEST(SplitRuleText, FuzzedTextIsReadOrRefused) {
  std::mt19937 random(7);
  const std::string letters = "ab*. \tcolumnsrowspartsheads=+0123456789-\n\x80";
  int read = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string words = i % 2 == 0 ? "x columns " : "";
    const auto length = static_cast<int>(random() % 24);
    for (int j = 0; j < length; ++j) words += letters[random() % letters.size()];
    try {
      const SplitRule rule = parse_split_rule(words);
      EXPECT_EQ(to_text(parse_split_rule(to_text(rule))), to_text(rule)) << words;
      ++read;
    } catch (const UsageError&) {
    }
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace trestle::tensor_parallel
