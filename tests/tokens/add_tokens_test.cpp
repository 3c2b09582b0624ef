#include "trestle/tokens/add_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tokens/golden_tokens.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/tokens/open_tokenizer.h"
#include "trestle/tokens/saved_tokenizer.h"
#include "trestle/tokens/tokenizers/byte_alphabet.h"
#include "trestle/tokens/tokenizers/bytes_tokenizer.h"
#include "trestle/tokens/train_bpe.h"

namespace trestle::tokens {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class AddTokens : public testing::Test {
 protected:
  static std::unique_ptr<Tokenizer> learned() {
    const std::vector<std::string> strings = golden_strings();
    const std::vector<std::string_view> texts(strings.begin(), strings.end());
    return bpe_tokenizer(train_bpe(texts, {.vocabulary_size = 400}));
  }

  static std::string refusal(const Tokenizer& tokenizer, const std::vector<NewToken>& added) {
    try {
      add_tokens(tokenizer, added);
      return "no error";
    } catch (const UsageError& error) {
      return error.what();
    }
  }

  const std::unique_ptr<Tokenizer> own_ = learned();
  const std::unique_ptr<Tokenizer> larger_ =
      add_tokens(*own_, {{.spelling = "<|tool|>"}, {.spelling = "<|call|>", .special = true}});
};

TEST_F(AddTokens, KeepsTheIdsOfTextWithoutThem) {
  EXPECT_EQ(larger_->size(), own_->size() + 2);
  for (const std::string& text : golden_strings())
    EXPECT_EQ(larger_->encode(text), own_->encode(text));
  for (Id id = 0; id < own_->size(); ++id) EXPECT_EQ(larger_->bytes(id), own_->bytes(id));
}

TEST_F(AddTokens, FindsOrdinaryOnesInTextAndSpecialOnesOnRequest) {
  const Id tool = own_->size(), call = own_->size() + 1;
  EXPECT_EQ(larger_->find("<|tool|>"), tool);
  EXPECT_THAT(larger_->encode("a<|tool|>b"), testing::Contains(tool));
  EXPECT_THAT(larger_->encode("a<|call|>b"), testing::Not(testing::Contains(call)));
  EXPECT_THAT(larger_->encode("a<|call|>b", Specials::Recognised), testing::Contains(call));
  EXPECT_TRUE(larger_->is_special(call));
  EXPECT_FALSE(larger_->is_special(tool));
  EXPECT_EQ(larger_->decode(larger_->encode("a<|tool|> b")), "a<|tool|> b");
}

TEST_F(AddTokens, CountsThemOnlyIfAllElseIsEqual) {
  EXPECT_EQ(added_tokens(*larger_, *own_), 2);
  EXPECT_EQ(added_tokens(*add_tokens(*larger_, {{.spelling = "<|x|>"}}), *own_), 3);
  EXPECT_EQ(added_tokens(*own_, *own_), 0);
  EXPECT_EQ(added_tokens(*own_, *larger_), 0);
  const std::vector<std::string_view> texts = {"another text with other merges, other words"};
  const auto other = bpe_tokenizer(train_bpe(texts, {.vocabulary_size = 270}));
  EXPECT_EQ(added_tokens(*larger_, *other), 0);
  EXPECT_EQ(added_tokens(*larger_, *bytes_tokenizer()), 0);
  EXPECT_EQ(added_tokens(*bytes_tokenizer(), *own_), 0);
}

TEST_F(AddTokens, RefusesWhatIsNoNewToken) {
  EXPECT_THAT(refusal(*own_, {{.spelling = ""}}), HasSubstr("empty"));
  EXPECT_THAT(refusal(*own_, {{.spelling = "\xff"}}), HasSubstr("UTF-8"));
  EXPECT_THAT(refusal(*own_, {{.spelling = "<|endoftext|>"}}), HasSubstr("already: its id is 0"));
  EXPECT_THAT(refusal(*own_, {{.spelling = "a"}}), HasSubstr("already"));
  EXPECT_THAT(refusal(*own_, {{.spelling = "<x>"}, {.spelling = "<x>"}}), HasSubstr("twice"));
  Id with_space = 0;
  while (own_->bytes(with_space).size() < 2 || own_->bytes(with_space)[0] != ' ') ++with_space;
  EXPECT_THAT(refusal(*own_, {{.spelling = ByteAlphabet().spell(own_->bytes(with_space))}}),
              HasSubstr(text("spells the token ", with_space)));
  EXPECT_THAT(refusal(*own_, {}), HasSubstr("no token to add"));
  EXPECT_THAT(refusal(*bytes_tokenizer(), {{.spelling = "<x>"}}), HasSubstr("byte-level BPE"));
}

// From each of the formats: one tokenizer.json, which replaces the files that it stands for.
TEST_F(AddTokens, SurviveTheirFile) {
  const fs::path folder = fs::path(testing::TempDir()) / "trestle_add_tokens";
  fs::remove_all(folder);
  fs::create_directories(folder);
  write_file(folder / "vocab.json", "{}");
  write_file(folder / "merges.txt", "");
  save_added_tokens(*larger_, folder);
  EXPECT_FALSE(fs::exists(folder / "vocab.json"));
  const auto read = open_saved_tokenizer(folder);
  EXPECT_EQ(read->hash(), larger_->hash());
  EXPECT_EQ(added_tokens(*read, *own_), 2);
  EXPECT_TRUE(read->is_special(own_->size() + 1));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace trestle::tokens
