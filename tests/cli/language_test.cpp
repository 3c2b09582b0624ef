#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

// `trestle generate` and `trestle evaluate` with a tiny language model that was trained on bytes.
namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class LanguageVerbs : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    std::string words;
    for (int i = 0; i < 60; ++i) words += text("The ", i, " ships sail, and the sea is wide.\n");
    write_file(folder_ / "sea.txt", words);
    write_file(folder_ / "tiny.toml", R"([model]
name = "llama"
width = 16
[transformer]
layers = 2
heads = 4
kv_heads = 2
context = 32
[data]
name = "tokens"
tokens = "sea"
order = "random"
count = 800
validation_windows = 8
[optimizer]
name = "adamw"
learning_rate = 1e-2
[devices]
use = "cpu"
threads = 1
[train]
epochs = 1
batch = 8
)");
    write_file(folder_ / "prompts.txt", "The\n\nThe ships sail, and\nX\nThe\n");
    ASSERT_EQ(done({"text", "prepare", "sea.txt", "--tokenizer", "bytes", "--out", "sea"}), "");
    ASSERT_EQ(done({"train", "tiny.toml", "--quiet"}), "");
  }
  // The error, if there is one.
  static std::string done(const std::vector<std::string>& words) {
    const Finished finished = run(words);
    return finished.code == 0 ? "" : finished.err;
  }
  static std::vector<Json> json_lines(const std::vector<std::string>& words) {
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, 0) << finished.err;
    std::vector<Json> lines;
    for (const std::string& line : split(finished.out, '\n'))
      if (!line.empty()) lines.push_back(Json::parse(line));
    return lines;
  }
  static void refused(const std::vector<std::string>& words, const std::string& why) {
    const Finished finished = run(words);
    EXPECT_NE(finished.code, 0) << finished.out;
    EXPECT_THAT(finished.err, HasSubstr(why));
  }
};

TEST_F(LanguageVerbs, PromptsOfABatchGiveTheTextsThatTheyGiveAlone) {
  const std::vector<std::string> begin = {
      "generate", "runs/tiny", "--seed", "3", "--tokens", "50", "--temperature", "1.5", "--json"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = begin;
    words.insert(words.end(), more.begin(), more.end());
    return json_lines(words);
  };
  const std::vector<Json> together = with({"--prompts", "prompts.txt"});
  ASSERT_EQ(together.size(), 4U);
  EXPECT_NE(together[0]["ids"], together[3]["ids"]) << "the same prompt again gives another text";
  const std::vector<Json> two = with({"--prompts", "prompts.txt", "--batch", "2"});
  ASSERT_EQ(two.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(together[i]["ids"], two[i]["ids"]) << i;
  for (std::size_t i = 0; i < 3; ++i) {
    const Json alone = with({"--prompt", together[i]["prompt"]}).at(0);
    for (const char* key : {"prompt_ids", "ids", "text", "ended"})
      EXPECT_EQ(together[i][key], alone[key]) << i << key;
    EXPECT_EQ(alone["ended"], "context");
  }
}

TEST_F(LanguageVerbs, TextsArePrintedInTheOrderOfTheirPrompts) {
  const auto written = [](const std::string& prompt) {
    return run({"generate", "runs/tiny", "--greedy", "--tokens", "9", "--prompt", prompt}).out;
  };
  const Finished both = run({"generate", "runs/tiny", "--greedy", "--tokens", "9", "--prompt",
                             "The ships", "--prompt", "A"});
  EXPECT_EQ(both.out, written("The ships") + "\n" + written("A"));
  EXPECT_THAT(both.out, ::testing::StartsWith("The ships"));
}

TEST_F(LanguageVerbs, GenerateRefusesWhatHasNoEffect) {
  refused({"generate", "runs/tiny", "--prompt", "a", "--prompt", ""}, "--prompt");
  refused({"generate", "runs/tiny", "--prompt", "a", "--prompt", std::string(32, 'x')},
          "prompt 2 of 2 has 32 tokens");
  refused({"generate", "runs/tiny", "--ids", "5", "--batch", "2"}, "--batch has no effect");
  refused({"generate", "runs/tiny", "--chat", "--prompts", "prompts.txt"},
          "--prompts has no effect");
}

TEST_F(LanguageVerbs, EvaluatePrintsPerplexityOfText) {
  const Json all = json_lines({"evaluate", "runs/tiny", "--text", "sea.txt", "--json"}).at(0);
  EXPECT_EQ(all["bytes"], all["tokens"]) << "each byte is a token";
  EXPECT_EQ(all["window"], 32);
  EXPECT_EQ(all["stride"], 16);
  const double loss = all["loss"];
  EXPECT_GT(loss, 0.05);
  EXPECT_LT(loss, std::log(256.0)) << "better than guessing";
  EXPECT_NEAR(all["perplexity"], std::exp(loss), 1e-9);
  EXPECT_NEAR(all["bits_per_byte"], loss / std::log(2.0), 1e-9);
  const Json devices = json_lines({"evaluate", "runs/tiny", "--text", "sea.txt", "--devices",
                                   "virtual:2", "--window", "8", "--stride", "8", "--json"})
                           .at(0);
  EXPECT_EQ(devices["window"], 8);
  EXPECT_NE(devices["loss"], all["loss"]);
  const Finished words = run({"evaluate", "runs/tiny", "--text", "sea.txt"});
  EXPECT_THAT(words.out, AllOf(HasSubstr("\nperplexity    "), HasSubstr("\nbits per byte "),
                               HasSubstr("of up to 32 tokens, stride 16\n")));
}

TEST_F(LanguageVerbs, EvaluatePrintsShareOfRightAnswers) {
  write_file(
      folder_ / "q.jsonl",
      R"({"prompt": "The 7 ships sail, and the sea", "choices": ["is wide", "QZ@@QZQ"], "answer": 0})"
      "\n"
      R"({"question": "The 8 ships", "choices": ["%%&&", "sail"], "answer": 1})"
      "\n");
  const Json all = json_lines({"evaluate", "runs/tiny", "--choices", "q.jsonl", "--json"}).at(0);
  EXPECT_EQ(all["questions"], 2);
  EXPECT_EQ(all["acc_norm"], 1.0);
  EXPECT_GE(all["acc"], 0.5);
  EXPECT_EQ(all["cut"], 2) << "32 tokens hold the first question with neither choice";
  EXPECT_EQ(run({"evaluate", "runs/tiny", "--choices", "q.jsonl", "--separator", ""}).code, 0);
  const Finished words = run({"evaluate", "runs/tiny", "--choices", "q.jsonl"});
  EXPECT_THAT(words.out, AllOf(HasSubstr("\nacc       "), HasSubstr("\nacc_norm  1 (2 right"),
                               HasSubstr("questions 2 of q.jsonl")));
}

TEST_F(LanguageVerbs, EvaluateNamesFileLineAndKey) {
  write_file(folder_ / "bad.jsonl",
             "{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 0}\n"
             "{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 2}\n");
  write_file(folder_ / "empty.txt", "");
  refused({"evaluate", "runs/tiny", "--choices", "bad.jsonl"}, "bad.jsonl:2");
  refused({"evaluate", "runs/tiny", "--choices", "bad.jsonl"}, "key 'answer': is 2");
  refused({"evaluate", "runs/tiny", "--choices", "none.jsonl"}, "none.jsonl");
  refused({"evaluate", "runs/tiny", "--text", "empty.txt"}, "in empty.txt");
  refused({"evaluate", "runs/tiny", "--text", "sea.txt", "--window", "33"},
          "a window of 33 tokens is not from 1 to the model's context of 32");
  refused({"evaluate", "runs/tiny", "--text", "sea.txt", "--choices", "bad.jsonl"}, "--text");
  refused({"evaluate", "runs/tiny", "--window", "3"}, "--window has no effect without --text");
  refused({"evaluate", "runs/tiny", "--text", "sea.txt", "--batch", "3"}, "'train.batch'");
  refused({"evaluate", "runs/none", "--text", "sea.txt"}, "there is no such model");
}

}  // namespace
}  // namespace trestle
