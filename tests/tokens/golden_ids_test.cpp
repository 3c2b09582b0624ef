#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/tokens/golden_tokens.h"
#include "trestle/base/error.h"
#include "trestle/base/random.h"
#include "trestle/tokens/open_tokenizer.h"
#include "trestle/tokens/tokenizers/sentencepiece_tokenizer.h"
#include "trestle/tokens/tokenizers/tokenizer_json.h"

// The ids of Hugging Face's tokenizers and of sentencepiece.
namespace trestle::tokens {
namespace {

class GoldenIds : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Tokenizer> open() const {
    return open_tokenizer(golden_path(std::string(GetParam()) + ".json"));
  }
  nlohmann::json ids() const { return golden_json(std::string(GetParam()) + ".ids.json"); }
};

TEST_P(GoldenIds, EqualThoseOfHuggingFace) {
  const auto tokenizer = open();
  const std::vector<std::string> strings = golden_strings();
  const nlohmann::json golden = ids();
  ASSERT_EQ(golden["text"].size(), strings.size());
  for (std::size_t i = 0; i < strings.size(); ++i) {
    EXPECT_EQ(tokenizer->encode(strings[i]), golden["text"][i].get<std::vector<Id>>())
        << "string " << i << ": " << strings[i];
    EXPECT_EQ(tokenizer->encode(strings[i], Specials::Recognised),
              golden["recognised"][i].get<std::vector<Id>>())
        << "string " << i << ": " << strings[i];
  }
}

TEST_P(GoldenIds, AreTheSameInFourThreads) {
  const auto tokenizer = open();
  const std::vector<std::string> strings = golden_strings();
  std::vector<std::vector<Id>> alone;
  for (const std::string& string : strings) alone.push_back(tokenizer->encode(string));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < strings.size(); ++i) {
        count += tokenizer->encode(strings[i]) != alone[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, GoldenIds,
                         testing::Values("gpt2", "llama3", "smollm", "qwen2", "flags", "unknown"),
                         [](const auto& info) { return std::string(info.param); });

// 60 sets of added tokens, some of which are the white space that others take.
TEST(AddedTokens, ThatMeetHaveTheIdsOfHuggingFace) {
  const nlohmann::json golden = golden_json("strips.json");
  for (const nlohmann::json& one : golden["cases"]) {
    nlohmann::json file = golden["tokenizer"];
    file["added_tokens"] = one["added"];
    const auto tokenizer = parse_tokenizer_json(file.dump(), "strips.json");
    for (std::size_t i = 0; i < one["texts"].size(); ++i)
      EXPECT_EQ(tokenizer->encode(one["texts"][i].get<std::string>(), Specials::Recognised),
                one["ids"][i].get<std::vector<Id>>())
          << one["texts"][i] << " with " << one["added"];
  }
}

std::string random_text(Random* random) {
  std::string out;
  for (std::uint64_t left = random->below(40); left > 0; --left) {
    char32_t code = static_cast<char32_t>(random->below(
        std::vector<std::uint64_t>{0x80, 0x800, 0x10000, 0x110000}[random->below(4)]));
    if (code >= 0xD800 && code < 0xE000) code = ' ';
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    } else if (code < 0x10000) {
      out += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
              static_cast<char>(0x80 | (code & 63))};
    } else {
      out += {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
              static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
    }
  }
  return out;
}

TEST(RoundTrip, DecodesEveryTextToItself) {
  for (const char* name : {"gpt2.json", "llama3.json"}) {
    const auto tokenizer = open_tokenizer(golden_path(name));
    for (const std::string& string : golden_strings()) {
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(string)), string);
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(string, Specials::Recognised)), string);
    }
    Random random(11);
    for (int i = 0; i < 3000; ++i) {
      const std::string string = random_text(&random);
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(string)), string);
    }
  }
}

TEST(RoundTrip, TakesAMillionBytesWithoutASpace) {
  const auto tokenizer = open_tokenizer(golden_path("gpt2.json"));
  Random random(12);
  std::string letters;
  for (int i = 0; i < 1'000'000; ++i) letters += static_cast<char>('a' + random.below(26));
  for (const std::string& text : {letters, std::string(1'000'000, ' ') + "x", letters + "\n"}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

TEST(RoundTrip, ReplacesInvalidBytes) {
  const auto tokenizer = open_tokenizer(golden_path("gpt2.json"));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a\xFF\xE2\x82z")), "a\xEF\xBF\xBD\xEF\xBF\xBDz");
}

class GoldenSentencePiece : public testing::TestWithParam<const char*> {};

TEST_P(GoldenSentencePiece, EqualsThePackage) {
  const std::string name = GetParam();
  const auto tokenizer = open_tokenizer(golden_path(name + ".model"));
  const nlohmann::json golden = golden_json(name + ".ids.json");
  const std::vector<std::string> strings = golden_strings();
  for (std::size_t i = 0; i < strings.size(); ++i) {
    const std::vector<Id> ids = tokenizer->encode(strings[i]);
    EXPECT_EQ(ids, golden["text"][i].get<std::vector<Id>>()) << "string " << i;
    EXPECT_EQ(tokenizer->decode(ids), golden["decoded"][i].get<std::string>()) << "string " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenSentencePiece, testing::Values("bpe", "unigram"),
                         [](const auto& info) { return std::string(info.param); });

// A field of the model that the library would read without checks: normalizer_spec with a table
// whose trie of one number points far outside.
TEST(SentencePiece, RefusesADamagedTable) {
  const std::string damaged = golden_file("bpe.model") + std::string("\x1A\x0B\x12\x09", 4) +
                              std::string("\x04\0\0\0\xFF\xFF\xFF\x7F\0", 9);
  EXPECT_THAT([&] { parse_sentencepiece(damaged, "it.model"); },
              testing::ThrowsMessage<FormatError>(testing::HasSubstr("characters is damaged")));
}

TEST(SentencePiece, RecognisesControlTokensOnlyWhereItShould) {
  const auto tokenizer = open_tokenizer(golden_path("bpe.model"));
  const Id end = tokenizer->find("</s>");
  ASSERT_GE(end, 0);
  EXPECT_TRUE(tokenizer->is_special(end));
  EXPECT_EQ(tokenizer->bytes(end), "");
  EXPECT_EQ(tokenizer->encode("</s>", Specials::Recognised), std::vector<Id>{end});
  const std::vector<Id> text = tokenizer->encode("</s>");
  EXPECT_EQ(std::count(text.begin(), text.end(), end), 0);
  EXPECT_EQ(tokenizer->find("no such token"), -1);
}

}  // namespace
}  // namespace trestle::tokens
