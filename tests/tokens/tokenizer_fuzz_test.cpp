#include <gtest/gtest.h>

#include "tests/fuzz/fuzz.h"
#include "tests/tokens/golden_tokens.h"
#include "trestle/base/text.h"
#include "trestle/tokens/chat_template.h"
#include "trestle/tokens/tokenizers/gguf_tokens.h"
#include "trestle/tokens/tokenizers/sentencepiece_tokenizer.h"
#include "trestle/tokens/tokenizers/tokenizer_json.h"
#include "trestle/tokens/tokenizers/vocab_merges.h"

namespace trestle::tokens {
namespace {

// The golden file with a small vocabulary, so that mutations meet the rules too.
std::string small_json(const std::string& name) {
  nlohmann::json json = golden_json(name);
  nlohmann::json vocabulary = nlohmann::json::object();
  int id = 0;
  for (const char* token : {"a", "b", "c", "ab", "abc", "Ġ", "Ġa", "1", "<unk>"}) {
    vocabulary[token] = id++;
  }
  json["model"]["vocab"] = vocabulary;
  json["model"]["merges"] = {"a b", "ab c", "Ġ a"};
  for (nlohmann::json& token : json["added_tokens"]) token["id"] = id++;
  if (name == "unknown.json") json["added_tokens"][0]["id"] = 8;
  if (name == "llama3.json") {
    json["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"] = {9};
  }
  return json.dump();
}

void use(const Tokenizer& tokenizer) {
  for (const Specials specials : {Specials::AsText, Specials::Recognised}) {
    const std::vector<Id> ids =
        tokenizer.encode("abc a 12 LEFT <|im_start|> <mask>\xC3\xA9\xFF  ", specials);
    tokenizer.decode(ids);
  }
  tokenizer.prefix();
}

TEST(TokenizerFuzz, TokenizerJson) {
  std::vector<std::string> seeds;
  for (const char* name : {"gpt2", "llama3", "smollm", "qwen2", "flags", "unknown"}) {
    seeds.push_back(small_json(std::string(name) + ".json"));
    EXPECT_NO_THROW(use(*parse_tokenizer_json(seeds.back(), name)));
  }
  const auto result = fuzz::run(
      seeds, [](std::string_view bytes) { use(*parse_tokenizer_json(bytes, "fuzz.json")); },
      {.iterations = 10'000});
  EXPECT_GT(result.accepted, 100);
  EXPECT_GT(result.refused, 1000);
}

TEST(TokenizerFuzz, VocabularyAndMerges) {
  const std::string vocabulary = R"({"a":0,"b":1,"ab":2,"Ġ":3,"Ġa":4,"<|endoftext|>":5})";
  const std::string seed = vocabulary + "#version: 0.2\na b\nĠ a\n";
  const auto result =
      fuzz::run({seed},
                [](std::string_view bytes) {
                  const std::size_t end = std::min(bytes.find('#'), bytes.size());
                  use(*parse_vocab_merges(bytes.substr(0, end), bytes.substr(end), "vocab.json"));
                },
                {.iterations = 5'000});
  EXPECT_GT(result.accepted, 100);
  EXPECT_GT(result.refused, 100);
}

// One line is the type of a token and its spelling, or a merge.
TEST(TokenizerFuzz, GgufTokens) {
  const auto result =
      fuzz::run({"1a\n1b\n1ab\n3<s>\n4<t>\n5<u>\n2<v>\n*a b\n"},
                [](std::string_view bytes) {
                  GgufTokens parts = {.file = "fuzz.gguf", .model = "gpt2", .pre = "llama-bpe"};
                  for (const std::string& line : split(bytes, '\n')) {
                    if (line.starts_with('*')) {
                      parts.merges.push_back(line.substr(1));
                    } else if (!line.empty()) {
                      parts.token_type.push_back(line[0] - '0');
                      parts.tokens.push_back(line.substr(1));
                    }
                  }
                  parts.bos_token_id = 3;
                  use(*gguf_tokenizer(parts));
                },
                {.iterations = 5'000});
  EXPECT_GT(result.accepted, 100);
  EXPECT_GT(result.refused, 100);
}

TEST(TokenizerFuzz, ChatTemplates) {
  const auto result =
      fuzz::run({"default_system: be good\nbegin: <s>\nmessage: {role}\\n{content|trim}\n"
                 "message user: {content}\nanswer: \\{\\t\n"},
                [](std::string_view bytes) {
                  ChatTemplate::from_text(bytes).render(std::vector<Message>{{"user", "\xFF a "}});
                },
                {.iterations = 5'000});
  EXPECT_GT(result.accepted, 100);
  EXPECT_GT(result.refused, 100);
}

TEST(TokenizerFuzz, UnigramAndBpeModels) {
  const auto result =
      fuzz::run({golden_file("bpe.model"), golden_file("unigram.model")},
                [](std::string_view bytes) { use(*parse_sentencepiece(bytes, "fuzz.model")); },
                {.iterations = 2'000, .longest = 16384});
  EXPECT_GT(result.accepted, 0);
  EXPECT_GT(result.refused, 100);
}

}  // namespace
}  // namespace trestle::tokens
