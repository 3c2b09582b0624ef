#include "trestle/tokens/stream_decoder.h"

#include <gtest/gtest.h>

#include "tests/tokens/golden_tokens.h"
#include "trestle/base/random.h"
#include "trestle/base/utf8.h"
#include "trestle/tokens/open_tokenizer.h"
#include "trestle/tokens/tokenizers/bytes_tokenizer.h"
#include "trestle/tokens/tokenizers/valid_utf8.h"

namespace trestle::tokens {
namespace {

TEST(ValidUtf8, ReplacesWhatPythonReplaces) {
  for (const auto& [input, expected] :
       golden_json("utf8.json").get<std::vector<std::array<std::string, 2>>>()) {
    std::string storage;
    EXPECT_EQ(valid_utf8(from_hex(input), &storage), from_hex(expected)) << input;
  }
}

TEST(ValidUtf8, ReturnsAValidTextItself) {
  std::string storage;
  const std::string_view text = "abc \xE2\x82\xAC and more";
  EXPECT_EQ(valid_utf8(text, &storage).data(), text.data());
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<Id>& ids) {
  StreamDecoder decoder(tokenizer, StreamDecoder::SpecialTokens::Write);
  std::string all;
  for (const Id id : ids) {
    const std::string text = decoder.add(id);
    EXPECT_TRUE(is_utf8(text));
    all += text;
  }
  return all + decoder.finish();
}

TEST(StreamDecoder, HoldsAnUnfinishedCharacterBack) {
  const auto bytes = bytes_tokenizer();
  StreamDecoder decoder(*bytes);
  EXPECT_EQ(decoder.add('a'), "a");
  EXPECT_EQ(decoder.add(0xE2), "");
  EXPECT_EQ(decoder.add(0x82), "");
  EXPECT_EQ(decoder.add(0xAC), "\xE2\x82\xAC");
  EXPECT_EQ(decoder.add(0xF0), "");
  EXPECT_EQ(decoder.add('b'),
            "\xEF\xBF\xBD"
            "b");  // it never completes
  EXPECT_EQ(decoder.add(0xE2), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, EqualsTheDecodedText) {
  for (const char* name : {"gpt2.json", "llama3.json", "bpe.model", "unigram.model"}) {
    const auto tokenizer = open_tokenizer(golden_path(name));
    for (const std::string& string : golden_strings()) {
      const std::vector<Id> ids = tokenizer->encode(string);
      EXPECT_EQ(streamed(*tokenizer, ids), tokenizer->decode(ids)) << name << ": " << string;
    }
  }
}

TEST(StreamDecoder, EqualsTheReplacedTextOfRandomTokens) {
  const auto tokenizer = open_tokenizer(golden_path("gpt2.json"));
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<Id> ids;
    for (int k = 0; k < 10; ++k) ids.push_back(static_cast<Id>(random.below(300)));
    std::string storage;
    const std::string text = tokenizer->decode(ids);
    ASSERT_EQ(streamed(*tokenizer, ids), valid_utf8(text, &storage));
  }
}

TEST(StreamDecoder, SkipsSpecialTokens) {
  const auto tokenizer = open_tokenizer(golden_path("llama3.json"));
  const std::vector<Id> ids = tokenizer->encode("a<|eot_id|>b", Specials::Recognised);
  ASSERT_EQ(ids.size(), 3U);
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.add(ids[0]) + decoder.add(ids[1]) + decoder.add(ids[2]), "ab");
  EXPECT_EQ(streamed(*tokenizer, ids), "a<|eot_id|>b");
}

}  // namespace
}  // namespace trestle::tokens
