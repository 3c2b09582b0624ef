#include "trestle/tokens/train_bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/tokens/golden_tokens.h"
#include "trestle/base/error.h"
#include "trestle/tokens/open_tokenizer.h"

namespace trestle::tokens {
namespace {

std::vector<std::string> learned(const BpeParts& parts) {
  std::vector<std::string> tokens;
  for (const Merge& merge : parts.merges) {
    tokens.push_back(parts.tokens[static_cast<std::size_t>(merge.result)].bytes);
  }
  return tokens;
}

TEST(TrainBpe, MergesTheMostFrequentPair) {
  const std::vector<std::string_view> texts = {"abab abab", "abc"};
  // " a" (1), "ab" (5), "ba" (2), "bc" (1): first "ab"; then "ab"+"ab" (2) is the only one twice.
  EXPECT_EQ(learned(train_bpe(texts, {.vocabulary_size = 300})),
            (std::vector<std::string>{"ab", "abab"}));
  EXPECT_EQ(learned(train_bpe(texts, {.vocabulary_size = 258})), std::vector<std::string>{"ab"});
  EXPECT_EQ(learned(train_bpe(texts, {.vocabulary_size = 300, .min_frequency = 3})),
            std::vector<std::string>{"ab"});
}

TEST(TrainBpe, TakesTheLowestIdsOfEqualPairs) {
  const std::vector<std::string_view> texts = {"zy", "zy", "ba", "ba"};
  EXPECT_EQ(learned(train_bpe(texts, {.vocabulary_size = 300})),
            (std::vector<std::string>{"ba", "zy"}));
}

TEST(TrainBpe, DoesNotDependOnTheOrderOfTexts) {
  std::vector<std::string> strings = golden_strings();
  std::vector<std::string_view> texts(strings.begin(), strings.end());
  const BpeParts parts = train_bpe(texts, {.vocabulary_size = 500});
  std::reverse(texts.begin(), texts.end());
  EXPECT_EQ(bpe_tokenizer(parts)->hash(),
            bpe_tokenizer(train_bpe(texts, {.vocabulary_size = 500}))->hash());
}

TEST(TrainBpe, SurvivesItsFile) {
  const std::vector<std::string> strings = golden_strings();
  const std::vector<std::string_view> texts(strings.begin(), strings.end());
  const BpeParts parts =
      train_bpe(texts, {.vocabulary_size = 400, .special_tokens = {"<|endoftext|>", "<|x|>"}});
  ASSERT_EQ(parts.tokens.size(), 400U);
  const auto path = std::filesystem::path(testing::TempDir()) / "trestle_trained.json";
  save_tokenizer_json(parts, path);
  const auto read = open_tokenizer(path);
  std::filesystem::remove(path);
  const auto trained = bpe_tokenizer(parts);
  EXPECT_EQ(read->hash(), trained->hash());
  EXPECT_EQ(read->find("<|x|>"), 1);
  EXPECT_TRUE(read->is_special(1));
  for (const std::string& string : strings) {
    EXPECT_EQ(read->decode(read->encode(string)), string);
    EXPECT_EQ(read->encode(string), trained->encode(string));
  }
}

TEST(TrainBpe, EqualsTheTrainingOfHuggingFace) {
  const nlohmann::json golden = golden_json("trained.json");
  const auto strings = golden["texts"].get<std::vector<std::string>>();
  const std::vector<std::string_view> texts(strings.begin(), strings.end());
  const auto expected = golden["tokens"].get<std::vector<std::string>>();
  EXPECT_EQ(learned(train_bpe(texts, {.vocabulary_size = 320, .special_tokens = {}})), expected);
}

TEST(TrainBpe, HasOneIdForAWordThatIsSpelledAsASpecialToken) {
  const std::vector<std::string_view> texts = {"abab abab"};
  const BpeParts parts = train_bpe(texts, {.vocabulary_size = 300, .special_tokens = {"ab"}});
  const auto path = std::filesystem::path(testing::TempDir()) / "trestle_trained_special.json";
  save_tokenizer_json(parts, path);
  const auto read = open_tokenizer(path);
  std::filesystem::remove(path);
  EXPECT_EQ(read->find("ab"), 0);
  EXPECT_EQ(read->decode(read->encode("abab ab")), "abab ab");
}

TEST(TrainBpe, ChecksItsOptions) {
  EXPECT_THROW(train_bpe({}, {.vocabulary_size = 256}), UsageError);
  EXPECT_THROW(train_bpe({}, {.special_tokens = {""}}), UsageError);
  EXPECT_THROW(train_bpe({}, {.special_tokens = {"<a>", "<a>"}}), UsageError);
  EXPECT_THROW(train_bpe({}, {.special_tokens = {"a"}}), UsageError);
  EXPECT_EQ(train_bpe({}, {}).tokens.size(), 257U);
}

}  // namespace
}  // namespace trestle::tokens
