#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "tests/tokens/golden_tokens.h"
#include "trestle/base/error.h"
#include "trestle/tokens/open_tokenizer.h"
#include "trestle/tokens/tokenizers/bytes_tokenizer.h"
#include "trestle/tokens/tokenizers/character_tokenizer.h"
#include "trestle/tokens/tokenizers/gguf_tokens.h"
#include "trestle/tokens/tokenizers/tokenizer_json.h"
#include "trestle/tokens/tokenizers/vocab_merges.h"
#include "trestle/tokens/train_bpe.h"

namespace trestle::tokens {
namespace {

using testing::HasSubstr;

template <class ErrorType>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ErrorType& error) {
    return error.what();
  }
  return "no error";
}

// The tokenizer.json `name` with one member replaced.
std::string changed(const std::string& name, const std::string& pointer,
                    const nlohmann::json& value) {
  nlohmann::json json = golden_json(name);
  json[nlohmann::json::json_pointer(pointer)] = value;
  return json.dump();
}

std::string json_error(const std::string& content) {
  return error_of<FormatError>([&] { parse_tokenizer_json(content, "it.json"); });
}

GgufTokens gguf_of(const std::string& name, const std::string& pre) {
  const nlohmann::json json = golden_json(name);
  GgufTokens parts = {.file = "tiny.gguf", .model = "gpt2", .pre = pre};
  const auto put = [&](const std::string& token, std::size_t id, int type) {
    if (id >= parts.tokens.size()) parts.tokens.resize(id + 1);
    parts.token_type.resize(parts.tokens.size(), 1);
    parts.tokens[id] = token;
    parts.token_type[id] = type;
  };
  for (const auto& [token, id] : json["model"]["vocab"].items()) {
    put(token, id.get<std::size_t>(), 1);
  }
  for (const auto& token : json["added_tokens"]) {
    put(token["content"], token["id"].get<std::size_t>(), token["special"] ? 3 : 4);
  }
  for (const auto& merge : json["model"]["merges"]) {
    parts.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return parts;
}

TEST(TokenizerFiles, HaveOneHashForOneTokenizer) {
  const auto json = open_tokenizer(golden_path("gpt2.json"));
  const auto pair = open_tokenizer(golden_path("gpt2"));
  EXPECT_EQ(json->hash(), pair->hash());
  EXPECT_EQ(json->hash(), gguf_tokenizer(gguf_of("gpt2.json", "gpt-2"))->hash());
  EXPECT_EQ(json->hash().size(), 16U);
  EXPECT_EQ(open_tokenizer(golden_path("smollm.json"))->hash(),
            gguf_tokenizer(gguf_of("smollm.json", "smollm"))->hash());
  EXPECT_EQ(open_tokenizer(golden_path("qwen2.json"))->hash(),
            gguf_tokenizer(gguf_of("qwen2.json", "qwen2"))->hash());
  GgufTokens llama3 = gguf_of("llama3.json", "llama-bpe");
  const auto from_json = open_tokenizer(golden_path("llama3.json"));
  llama3.bos_token_id = from_json->find("<|begin_of_text|>");
  EXPECT_EQ(from_json->hash(), gguf_tokenizer(llama3)->hash());
}

TEST(TokenizerFiles, HashDependsOnEveryRule) {
  const std::string hash = open_tokenizer(golden_path("gpt2.json"))->hash();
  const auto hash_of = [](const std::string& content) {
    return parse_tokenizer_json(content, "")->hash();
  };
  nlohmann::json swapped = golden_json("gpt2.json");
  std::swap(swapped["model"]["merges"][0], swapped["model"]["merges"][1]);
  EXPECT_NE(hash_of(swapped.dump()), hash);
  EXPECT_NE(hash_of(changed("gpt2.json", "/pre_tokenizer/add_prefix_space", true)), hash);
  EXPECT_NE(hash_of(changed("gpt2.json", "/normalizer", {{"type", "NFC"}})), hash);
  EXPECT_NE(hash_of(changed("gpt2.json", "/model/ignore_merges", true)), hash);
  EXPECT_NE(hash_of(changed("gpt2.json", "/added_tokens/0/special", false)), hash);
  EXPECT_NE(hash_of(changed("gpt2.json", "/added_tokens/0/content", "<|end|>")), hash);
}

TEST(TokenizerFiles, ReadMergesInBothForms) {
  nlohmann::json json = golden_json("gpt2.json");
  for (nlohmann::json& merge : json["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  EXPECT_EQ(parse_tokenizer_json(json.dump(), "")->hash(),
            open_tokenizer(golden_path("gpt2.json"))->hash());
}

TEST(TokenizerFiles, TellTokensBeforeAndAfterEachText) {
  const auto llama3 = open_tokenizer(golden_path("llama3.json"));
  EXPECT_EQ(llama3->prefix(), std::vector<Id>{llama3->find("<|begin_of_text|>")});
  EXPECT_TRUE(llama3->suffix().empty());
  EXPECT_TRUE(llama3->is_special(llama3->prefix()[0]));
  EXPECT_FALSE(llama3->is_special(llama3->find("the")));
  const nlohmann::json roberta = {
      {"type", "RobertaProcessing"}, {"sep", {"!", 5}}, {"cls", {"?", 7}}};
  const auto other =
      parse_tokenizer_json(changed("gpt2.json", "/post_processor", roberta), "it.json");
  EXPECT_EQ(other->prefix(), std::vector<Id>{7});
  EXPECT_EQ(other->suffix(), std::vector<Id>{5});
}

TEST(TokenizerFiles, RefuseWhatTheyDoNotSupportByName) {
  EXPECT_THAT(json_error(changed("gpt2.json", "/model/type", "Unigram")),
              HasSubstr("field 'model.type' is 'Unigram'"));
  EXPECT_THAT(json_error(changed("gpt2.json", "/normalizer", {{"type", "Lowercase"}})),
              HasSubstr("field 'normalizer.type' is 'Lowercase'"));
  EXPECT_THAT(json_error(changed("gpt2.json", "/pre_tokenizer", {{"type", "Metaspace"}})),
              HasSubstr("field 'pre_tokenizer.type' is 'Metaspace'"));
  EXPECT_THAT(json_error(changed("gpt2.json", "/pre_tokenizer", nullptr)),
              HasSubstr("'pre_tokenizer' has no ByteLevel"));
  EXPECT_THAT(json_error(changed("gpt2.json", "/post_processor", {{"type", "Other"}})),
              HasSubstr("field 'post_processor.type' is 'Other'"));
  EXPECT_THAT(json_error(changed("gpt2.json", "/decoder", {{"type", "WordPiece"}})),
              HasSubstr("field 'decoder.type' is 'WordPiece'"));
  EXPECT_THAT(json_error(changed("gpt2.json", "/model/dropout", 0.1)),
              HasSubstr("field 'model.dropout'"));
  EXPECT_THAT(json_error(changed("gpt2.json", "/model/byte_fallback", true)),
              HasSubstr("field 'model.byte_fallback'"));
  EXPECT_THAT(json_error(changed("gpt2.json", "/model/end_of_word_suffix", "</w>")),
              HasSubstr("field 'model.end_of_word_suffix' is '</w>'"));
  EXPECT_THAT(json_error(changed("llama3.json", "/pre_tokenizer/pretokenizers/0/behavior",
                                 "MergedWithNext")),
              HasSubstr("behavior' is 'MergedWithNext'"));
}

TEST(TokenizerFiles, RefuseRegularExpressionsThatMayDiffer) {
  for (const char* pattern :
       {R"(\h+)", R"(\p{Lu}+)", "a.b", "^a", "a$", "[a[bc]]", "[a&&b]", R"(\p{N}{1,3}+)", "(?<x>a)",
        "(?i:ss)", R"(\w+)", "[\\S]", "a**", "(*VERB)a", "\\"}) {
    EXPECT_THAT(
        json_error(changed("llama3.json", "/pre_tokenizer/pretokenizers/0/pattern/Regex", pattern)),
        HasSubstr("regular expression"))
        << pattern;
  }
  EXPECT_THAT(
      json_error(changed("llama3.json", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a")),
      HasSubstr("invalid regular expression"));
}

TEST(TokenizerFiles, NameWhatIsWrong) {
  EXPECT_THAT(json_error("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(json_error("{}"), HasSubstr("has no member 'model'"));
  EXPECT_THAT(json_error(changed("gpt2.json", "/model/vocab/x y", 2'000'000'000)),
              HasSubstr("token 'x y' has the id 2000000000"));
  EXPECT_THAT(json_error(changed("gpt2.json", "/model/vocab/x y", 5)),
              HasSubstr("two tokens have the id 5"));
  EXPECT_THAT(json_error(changed("gpt2.json", "/model/merges/0", {"qqq", "zzz"})),
              HasSubstr("'qqq', which is not in the vocabulary"));
  EXPECT_THAT(json_error(changed("gpt2.json", "/added_tokens/0/id", -3)), HasSubstr("the id -3"));
  const std::string merges = golden_file("gpt2/merges.txt") + "one\n";
  EXPECT_THAT(error_of<FormatError>([&] {
                parse_vocab_merges(golden_file("gpt2/vocab.json"), merges, "vocab.json");
              }),
              HasSubstr("'one', is not two tokens"));
}

TEST(TokenizerFiles, RefuseOutOfRangeIds) {
  const auto tokenizer = open_tokenizer(golden_path("gpt2.json"));
  const std::string size = std::to_string(tokenizer->size() - 1);
  for (const Id id : {-1, tokenizer->size()}) {
    EXPECT_THAT(error_of<UsageError>([&] { tokenizer->bytes(id); }), HasSubstr("0 to " + size));
  }
}

TEST(GgufTokens, RefuseUnknownNames) {
  EXPECT_THAT(error_of<UsageError>([] { gguf_tokenizer(gguf_of("gpt2.json", "lama-bpe")); }),
              HasSubstr("did you mean 'llama-bpe'?"));
  GgufTokens parts = gguf_of("gpt2.json", "gpt-2");
  parts.model = "llama";
  EXPECT_THAT(error_of<UsageError>([&] { gguf_tokenizer(parts); }),
              HasSubstr("tokenizer.ggml.model is 'llama'"));
  parts.model = "gpt2";
  parts.token_type.pop_back();
  EXPECT_THAT(error_of<FormatError>([&] { gguf_tokenizer(parts); }), HasSubstr("token_type"));
  parts.token_type.clear();
  parts.add_eos_token = true;
  EXPECT_THAT(error_of<FormatError>([&] { gguf_tokenizer(parts); }),
              HasSubstr("eos_token_id is -1"));
}

TEST(OpenTokenizer, NamesWhatItTakes) {
  const auto error = [](const std::filesystem::path& path) {
    return error_of<UsageError>([&] { open_tokenizer(path); });
  };
  EXPECT_THAT(error("characters"), HasSubstr("character_tokenizer"));
  EXPECT_THAT(error(golden_path("gpt2/vocab.json")), HasSubstr("Give the folder"));
  EXPECT_THAT(error(golden_path("chat")), HasSubstr("the folder has no tokenizer"));
  EXPECT_THAT(error("x.txt"), HasSubstr("no tokenizer by its name"));
  EXPECT_THROW(open_tokenizer("nowhere.json"), FileError);
  EXPECT_EQ(open_tokenizer("bytes")->hash(), bytes_tokenizer()->hash());
}

TEST(BytesTokenizer, HasAnIdForEachByte) {
  const auto bytes = bytes_tokenizer();
  EXPECT_EQ(bytes->encode("aé"), (std::vector<Id>{97, 0xC3, 0xA9}));
  EXPECT_EQ(bytes->decode(bytes->encode("aé")), "aé");
  EXPECT_EQ(bytes->size(), 256);
  EXPECT_THROW(bytes->bytes(256), UsageError);
}

TEST(CharacterTokenizer, SurvivesItsFile) {
  const auto written = character_tokenizer("hello \xC3\xA9 \"\\\n\xF0\x9F\x98\x80");
  // In the order of Unicode: new line, space, quotation mark, backslash, e, h, l, o, and two more.
  EXPECT_EQ(written->encode("he\n\xF0\x9F\x98\x80"), (std::vector<Id>{5, 4, 0, 9}));
  const auto path = std::filesystem::path(testing::TempDir()) / "trestle_characters.json";
  written->save(path);
  const auto read = open_tokenizer(path);
  std::filesystem::remove(path);
  EXPECT_EQ(read->hash(), written->hash());
  EXPECT_EQ(read->decode(read->encode("hole \xC3\xA9")), "hole \xC3\xA9");
  EXPECT_THAT(error_of<UsageError>([&] { read->encode("hexe"); }),
              HasSubstr("the character 'x' at byte 2"));
}

TEST(CharacterTokenizer, RefusesOtherFilesOfWords) {
  const auto path = std::filesystem::path(testing::TempDir()) / "trestle_characters.json";
  character_tokenizer("ab")->save(path);
  const nlohmann::json good = nlohmann::json::parse(read_file(path));
  std::filesystem::remove(path);
  nlohmann::json words = good;
  words["model"]["vocab"] = {{"a", 0}, {"word", 1}};
  EXPECT_THAT(json_error(words.dump()), HasSubstr("'word', is not one character"));
  nlohmann::json whitespace = good;
  whitespace["pre_tokenizer"] = {{"type", "Whitespace"}};
  EXPECT_THAT(json_error(whitespace.dump()), HasSubstr("of the type 'Whitespace'"));
  nlohmann::json twice = good;
  twice["model"]["vocab"] = {{"a", 0}, {"b", 0}};
  EXPECT_THAT(json_error(twice.dump()), HasSubstr("has no id of its own"));
}

}  // namespace
}  // namespace trestle::tokens
