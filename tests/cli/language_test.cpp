#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

// `trestle generate` and `trestle evaluate` with a tiny language model that was trained on bytes.
namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
namespace fs = std::filesystem;

class LanguageVerbs : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    write_sea();
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

TEST_F(LanguageVerbs, Int8WeightsWriteAndAreEvaluated) {
  const Json exact = json_lines({"evaluate", "runs/tiny", "--text", "sea.txt", "--json"})[0];
  const Json rounded = json_lines(
      {"evaluate", "runs/tiny", "--text", "sea.txt", "--json", "--precision", "int8"})[0];
  const double loss = exact["loss"], with_int8 = rounded["loss"];
  EXPECT_NE(loss, with_int8);
  EXPECT_NEAR(loss, with_int8, 0.02 * loss);
  const auto answer = [](const char* devices) {
    return json_lines({"generate", "runs/tiny", "--prompt", "The", "--greedy", "--tokens", "20",
                       "--precision", "int8", "--devices", devices, "--json"})[0]["text"]
        .get<std::string>();
  };
  EXPECT_THAT(answer("cpu"), HasSubstr("sea is wide"));
  EXPECT_EQ(answer("virtual:2"), answer("cpu"));
  refused({"generate", "runs/tiny", "--prompt", "The", "--precision", "int4"}, "int8");
  refused({"evaluate", "runs/tiny", "--text", "sea.txt", "--precision", "fp16"},
          "--precision fp16 is not one of fp32, bf16 and int8");
}

TEST_F(LanguageVerbs, GenerateRefusesWhatHasNoEffect) {
  refused({"generate", "runs/tiny", "--prompt", "a", "--prompt", ""}, "--prompt");
  refused({"generate", "runs/tiny", "--prompt", "a", "--prompt", std::string(32, 'x')},
          "prompt 2 of 2 has 32 tokens");
  refused({"generate", "runs/tiny", "--ids", "5", "--batch", "2"}, "--batch has no effect");
  refused({"generate", "runs/tiny", "--ids", "5", "--devices", "virtual:1x16KiB"},
          "Use smaller batches, more devices, or a larger budget");
  refused({"generate", "runs/tiny", "--chat", "--prompts", "prompts.txt"},
          "--prompts has no effect");
}

// A copy of the run, to be damaged.
class DamagedRun : public LanguageVerbs {
 protected:
  void SetUp() override {
    LanguageVerbs::SetUp();
    fs::copy(folder_ / "runs/tiny", run_, fs::copy_options::recursive);
  }
  const fs::path run_ = folder_ / "runs/damaged";
};

TEST_F(DamagedRun, ErrorsBeginALineBehindAPrompt) {
  std::string weights = read_file(run_ / "best.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof header);
  std::fill(weights.begin() + static_cast<std::ptrdiff_t>(8 + header), weights.end(), '\xff');
  write_file(run_ / "best.safetensors", weights);  // each number is NaN
  const Finished failed = run({"generate", "runs/damaged", "--prompt", "The ships"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_EQ(failed.out, "The ships\n");
  EXPECT_THAT(failed.err, ::testing::StartsWith("trestle: the score of token 0 is "));
}

TEST_F(DamagedRun, MissingBestWeightsNameTheLastOnes) {
  fs::remove(run_ / "best.safetensors");
  const std::vector<std::string> words = {"generate", "runs/damaged", "--ids", "5"};
  refused(words, "--checkpoint last");
  fs::remove_all(run_ / "last");
  EXPECT_THAT(run(words).err, Not(HasSubstr("--checkpoint last")));
}

TEST_F(DamagedRun, WeightsOfAnotherConfigHaveNoAdviceForTraining) {
  Json config = Json::parse(read_file(run_ / "config.json"));
  config["num_hidden_layers"] = 3;
  write_file(run_ / "config.json", config.dump());
  const Finished failed = run({"generate", "runs/damaged", "--ids", "5"});
  EXPECT_THAT(failed.err,
              AllOf(HasSubstr("config is not that of its weights"), Not(HasSubstr("strict"))));
}

TEST_F(LanguageVerbs, CountWithoutRandomOrderIsRefused) {
  refused({"train", "tiny.toml", "--name", "counted", "--order", "windows"},
          "'count' = 800 in [data] has no effect with order = \"windows\"");
  EXPECT_FALSE(fs::exists(folder_ / "runs/counted"));
}

TEST_F(LanguageVerbs, RanksWriteTheSampleOfOneProcess) {
  const std::string sample = read_file(folder_ / "runs/tiny/samples/epoch_001.txt");
  const Finished finished =
      run({"train", "tiny.toml", "--name", "on_ranks", "--ranks", "2", "--balance", "2,3"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(read_file(folder_ / "runs/on_ranks/samples/epoch_001.txt"), sample);
  const std::string shown = sample.substr(0, sample.find('\n'));
  EXPECT_THAT(finished.out, HasSubstr(shown));
}

// A conversation of bytes: a message of one letter has 51 with its template, and the context 128.
TEST_F(LanguageVerbs, ChatOutlivesAFullContext) {
  ASSERT_EQ(done({"train", "tiny.toml", "--name", "chat", "--context", "128", "--max-steps", "3",
                  "--quiet"}),
            "");
  fs::copy_file(fs::path(TRESTLE_SOURCE_DIR) / "tests/golden/tokens/chat/chatml.jinja",
                folder_ / "runs/chat/tokenizer/chat_template.jinja");
  const Finished talk =
      run({"generate", "runs/chat", "--chat", "--tokens", "8", "--json", "--prompt", "a",
           "--prompt", "b", "--prompt", std::string(100, 'c'), "--prompt", "d"});
  EXPECT_EQ(talk.code, 0) << talk.err;
  std::vector<std::string> prompts;
  for (const std::string& line : split(talk.out, '\n'))
    if (!line.empty()) prompts.push_back(Json::parse(line)["prompt"]);
  EXPECT_EQ(prompts, (std::vector<std::string>{"a", "b", "d"}));
  EXPECT_THAT(talk.err,
              AllOf(HasSubstr("the model no longer sees the oldest 1 message and the answers"),
                    HasSubstr("the message is left out: with its template it has 150 tokens, and "
                              "the model's context 128")));
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

// Each text of its own tokenizer: the same ids are other words.
TEST_F(LanguageVerbs, TokensOfAnotherTokenizerAreRefused) {
  write_file(folder_ / "other.txt", std::string(400, 'x') + "yz\n");
  ASSERT_EQ(done({"text", "prepare", "other.txt", "--tokenizer", "characters", "--out", "other"}),
            "");
  refused({"evaluate", "runs/tiny", "--tokens", "other"}, "model's tokenizer is");
  EXPECT_EQ(done({"evaluate", "runs/tiny", "--tokens", "sea"}), "");
  refused({"generate", "runs/tiny/best.safetensors", "--prompt", "The"}, "Name the folder");
  // The run's own text, written again with another tokenizer.
  ASSERT_EQ(done({"text", "prepare", "sea.txt", "--tokenizer", "bytes", "--out", "again"}), "");
  ASSERT_EQ(done({"train", "tiny.toml", "--tokens", "again", "--name", "again", "--quiet"}), "");
  ASSERT_EQ(done({"text", "prepare", "sea.txt", "--tokenizer", "characters", "--out", "again",
                  "--overwrite"}),
            "");
  refused({"evaluate", "runs/again"}, "model's tokenizer is");
  // A tokenizer that was put beside the text.
  fs::remove_all(folder_ / "sea2");
  fs::copy(folder_ / "sea", folder_ / "sea2", fs::copy_options::recursive);
  fs::remove_all(folder_ / "sea2/tokenizer");
  fs::copy(folder_ / "other/tokenizer", folder_ / "sea2/tokenizer");
  refused({"train", "tiny.toml", "--tokens", "sea2", "--name", "mixed"}, "model's tokenizer is");
  refused({"data", "check", "tokens", "--tokens", "sea2"}, "model's tokenizer is");
}

TEST_F(LanguageVerbs, DataCheckComparesChecksumsAndReadsRows) {
  const Finished plain = run({"data", "check", "tokens", "--tokens", "sea"});
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.out, AllOf(HasSubstr("1 good example"), HasSubstr("checksums of")));
  const Finished rows = run({"data", "check", "tiny.toml"});
  EXPECT_EQ(rows.code, 0) << rows.err;
  EXPECT_THAT(rows.out, HasSubstr("good examples"));
  fs::remove_all(folder_ / "changed");
  fs::copy(folder_ / "sea", folder_ / "changed", fs::copy_options::recursive);
  std::string bytes = read_file(folder_ / "changed/train_000000.bin");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(folder_ / "changed/train_000000.bin", bytes);
  refused({"data", "check", "tokens", "--tokens", "changed"}, "train_000000.bin");
}

TEST_F(LanguageVerbs, TextSlidesBehindTheContext) {
  const auto one = json_lines(
      {"generate", "runs/tiny", "--prompt", "The", "--tokens", "90", "--greedy", "--json"});
  EXPECT_EQ(one[0]["ended"], "context");
  const auto slid = json_lines({"generate", "runs/tiny", "--prompt", "The", "--tokens", "90",
                                "--greedy", "--slide", "--json"});
  EXPECT_EQ(slid[0]["ids"].size(), 90U);
  EXPECT_EQ(slid[0]["ended"], "length");
}

TEST_F(LanguageVerbs, LossesThatTakeNoTokensAreRefusedBeforeTheRun) {
  refused({"train", "tiny.toml", "--loss", "cross_entropy", "--name", "loss"},
          "does not take the scores of tokens");
}

TEST_F(LanguageVerbs, ExportsIntoANewOrEmptyFolder) {
  fs::create_directories(folder_ / "empty");
  EXPECT_EQ(done({"export", "runs/tiny", "--out", "empty", "--names", "hugging_face"}), "");
  refused({"export", "runs/tiny", "--out", "empty", "--names", "hugging_face"}, "--overwrite");
  EXPECT_EQ(
      done({"export", "runs/tiny", "--out", "empty", "--names", "hugging_face", "--overwrite"}),
      "");
  refused({"export", "runs/tiny", "--out", "sized", "--names", "peft", "--max-file-size", "1KB"},
          "--max-file-size");
  refused({"export", "runs/tiny", "--out", "not_made", "--names", "peft"}, "has no adapters");
  EXPECT_FALSE(fs::exists(folder_ / "not_made"));
}

TEST_F(LanguageVerbs, ExportsFilesOfAtMostASize) {
  const auto generated = [&](const char* model) {
    return json_lines(
        {"generate", model, "--ids", "32,51,53", "--tokens", "8", "--greedy", "--json"})[0]["ids"];
  };
  const std::vector<std::string> parts = {"export",  "runs/tiny",    "--out",           "parts",
                                          "--names", "hugging_face", "--max-file-size", "2KB"};
  EXPECT_EQ(done(parts), "");
  EXPECT_TRUE(fs::exists(folder_ / "parts/model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(folder_ / "parts/model.safetensors"));
  EXPECT_EQ(generated("parts"), generated("runs/tiny"));

  // A file that replaces several leaves none of them, nor their index, to be read instead of it.
  EXPECT_EQ(
      done({"export", "runs/tiny", "--out", "parts", "--names", "hugging_face", "--overwrite"}),
      "");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_ / "parts")) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(name == "model.safetensors" || !name.starts_with("model")) << name;
  }
  EXPECT_EQ(generated("parts"), generated("runs/tiny"));
}

TEST_F(LanguageVerbs, ExportsOfHalfTheSizeAreReadInTheirType) {
  done({"export", "runs/tiny", "--out", "whole", "--names", "hugging_face"});
  done({"export", "runs/tiny", "--out", "half", "--names", "hugging_face", "--precision", "bf16"});
  const auto bytes = [&](const char* name) {
    return static_cast<double>(fs::file_size(folder_ / name / "model.safetensors"));
  };
  EXPECT_LT(bytes("half"), 0.8 * bytes("whole"));  // the header remains
  const auto generated = [&](const char* model) {
    return json_lines({"generate", model, "--ids", "32,51,53", "--tokens", "8", "--greedy",
                       "--precision", "bf16", "--json"})[0]["ids"];
  };
  EXPECT_EQ(generated("half"), generated("runs/tiny"));
  refused({"export", "runs/tiny", "--out", "tiny.pt", "--precision", "bf16"}, "--precision");
  refused({"export", "runs/tiny", "--out", "peft", "--names", "peft", "--precision", "bf16"},
          "--precision");
}

TEST_F(LanguageVerbs, TokenizersAreTrainedFromTextsIntoJson) {
  refused({"text", "train-tokenizer", "sea.txt", "--vocabulary", "300", "--out", "own"}, ".json");
  write_file(folder_ / "nothing.txt", "");
  refused({"text", "train-tokenizer", "nothing.txt", "--out", "own.json"}, "have no text");
  write_file(folder_ / "pairs.jsonl", R"({"prompt": "a b a b", "answer": "c c c"})"
                                      "\n");
  EXPECT_EQ(done({"text", "train-tokenizer", "pairs.jsonl", "--prompt-key", "prompt",
                  "--vocabulary", "260", "--out", "own.json"}),
            "");
}

// A tokenizer with new tokens, a training from weights of the old ones, and its text.
TEST_F(LanguageVerbs, ModelGrowsByTheTokensThatPrepareAdds) {
  ASSERT_EQ(
      done({"text", "train-tokenizer", "sea.txt", "--vocabulary", "280", "--out", "small.json"}),
      "");
  write_file(folder_ / "calls.txt", read_file(folder_ / "sea.txt") + "call <|tool|> now\n");
  ASSERT_EQ(done({"text", "prepare", "sea.txt", "--tokenizer", "small.json", "--out", "small"}),
            "");
  ASSERT_EQ(done({"train", "tiny.toml", "--tokens", "small", "--name", "small", "--quiet"}), "");
  const std::vector<std::string> prepare = {
      "text",        "prepare",  "calls.txt",   "--tokenizer", "small.json",
      "--add-token", "<|tool|>", "--add-token", "<|user|>",    "--add-special",
      "<|stop|>",    "--out",    "calls",       "--json"};
  const auto prepared = json_lines(prepare);
  const std::int64_t known = prepared[0]["vocabulary"].get<std::int64_t>() - 3;
  const std::string vocabulary = std::to_string(known + 3);
  const auto grow = [](std::vector<std::string> more) {
    std::vector<std::string> words = {"train",  "tiny.toml", "--tokens",  "calls",
                                      "--name", "grown",     "--weights", "small.safetensors"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  fs::copy_file(folder_ / "runs/small/best.safetensors", folder_ / "small.safetensors");
  refused(grow({"--vocabulary", "270"}), "rows of tokens are added, not removed");
  refused(grow({"--adapter-rank", "2"}), "modules_to_save");
  const Finished grown = run(grow({"--vocabulary-multiple", "64"}));
  EXPECT_EQ(grown.code, 0) << grown.err;
  EXPECT_THAT(grown.out, HasSubstr("3 tokens that the weights do not have"));
  // The greedy answer has no id of the 64-row padding, and the new token is one id.
  const auto made = json_lines({"generate", "runs/grown", "--prompt", "call <|tool|>", "--tokens",
                                "12", "--greedy", "--json"});
  for (const auto& id : made[0]["ids"]) EXPECT_LT(id.get<std::int64_t>(), known + 3);
  EXPECT_EQ(done({"generate", "runs/grown", "--ids", std::to_string(known + 2), "--tokens", "2"}),
            "");
  refused({"generate", "runs/grown", "--ids", vocabulary, "--tokens", "2"},
          "the model has the ids 0 to " + std::to_string(known + 2));
  ASSERT_EQ(done({"export", "runs/grown", "--out", "grown", "--names", "hugging_face"}), "");
  EXPECT_EQ(Json::parse(read_file(folder_ / "grown/config.json"))["vocab_size"], known + 3);
  EXPECT_THAT(read_file(folder_ / "grown/tokenizer.json"), HasSubstr("<|tool|>"));
  refused({"text", "prepare", "sea.txt", "--add-token", "<|x|>", "--out", "none"},
          "byte-level BPE");

  // The same ids as before, and one has another word.
  std::vector<std::string> again = prepare;
  std::ranges::replace(again, "<|user|>", "<|usr|>");
  again.emplace_back("--overwrite");
  ASSERT_EQ(done(again), "");
  refused({"train", "--resume", "runs/grown", "--epochs", "2"}, "and the model's tokenizer is");
}

TEST_F(LanguageVerbs, DryRunReportsTheFaultsThatTrainingWould) {
  const std::vector<std::string> words = {"train", "tiny.toml", "--vocabulary", "100"};
  std::vector<std::string> dry = words;
  dry.emplace_back("--dry-run");
  refused(words, "vocabulary = 256 in [transformer] gives the model more");
  refused(dry, "vocabulary = 256 in [transformer] gives the model more");
}

// Pairs written with a template of your own, which the run keeps.
TEST_F(LanguageVerbs, ChatsAsThePairsWereWritten) {
  write_file(folder_ / "own.txt", "message: {role}>{content}.\\n\nanswer: assistant>\n");
  std::string pairs;
  for (int i = 0; i < 40; ++i)
    pairs += text(R"({"prompt": "and )", i, R"(", "answer": "yes"})", "\n");
  write_file(folder_ / "pairs.jsonl", pairs);
  ASSERT_EQ(done({"text", "prepare", "pairs.jsonl", "--prompt-key", "prompt", "--chat", "own.txt",
                  "--out", "talks"}),
            "");
  ASSERT_EQ(done({"train", "tiny.toml", "--tokens", "talks", "--order", "documents", "--count", "0",
                  "--name", "talks", "--quiet"}),
            "");
  const std::vector<std::string> chat = {"generate", "runs/talks", "--chat", "--prompt",
                                         "and 7",    "--tokens",   "4",      "--json"};
  const auto said = json_lines(chat);
  const std::string begin = "user>and 7.\nassistant>";
  EXPECT_EQ(said[0]["prompt_ids"].size(), begin.size());

  write_file(folder_ / "other.txt", "message: {content}\nanswer: >\n");
  std::vector<std::string> other = chat;
  other.insert(other.end(), {"--chat-template", "other.txt"});
  EXPECT_EQ(json_lines(other)[0]["prompt_ids"].size(), std::string("and 7>").size());

  refused({"text", "prepare", "pairs.jsonl", "--prompt-key", "prompt", "--key", "answer", "--out",
           "none"},
          "--key has no effect with --prompt-key");
  write_file(folder_ / "dated.txt", "begin: {today} \nmessage: >{content}\nanswer: >\n");
  other.back() = "dated.txt";
  EXPECT_EQ(json_lines(other)[0]["prompt_ids"].size(), std::string("05 Mar 2025 >and 7>").size());
  other.insert(other.end(), {"--today", "noon"});
  EXPECT_EQ(json_lines(other)[0]["prompt_ids"].size(), std::string("noon >and 7>").size());
  std::vector<std::string> dated = {"text",   "prepare", "pairs.jsonl", "--prompt-key",
                                    "prompt", "--chat",  "dated.txt",   "--out",
                                    "dated",  "--today", "noon"};
  ASSERT_EQ(done(dated), "");
  EXPECT_EQ(read_file(folder_ / "dated/tokenizer/chat_template.txt"),
            "begin: {today} \nmessage: >{content}\nanswer: >\ntoday: noon\n");
  dated.erase(dated.begin() + 5, dated.begin() + 7);
  refused(dated, "--today has no effect without --chat");
  refused({"generate", "runs/talks", "--chat", "--prompt", "a", "--today", "noon"},
          "the chat template does not write today's date");

  refused({"generate", "runs/tiny", "--chat", "--prompt", "a"}, "chat_template.txt");
  refused({"generate", "runs/tiny", "--prompt", "a", "--chat-template", "own.txt"},
          "--chat-template has no effect without --chat");
}

// A model of documents that end soon, and of pairs.
TEST_F(LanguageVerbs, TextsEndWhereTheModelLearnedIt) {
  ASSERT_EQ(
      done({"text", "train-tokenizer", "sea.txt", "--vocabulary", "262", "--out", "end.json"}), "");
  std::string lines;
  for (int i = 0; i < 600; ++i) lines += "{\"text\": \"ab\"}\n";
  write_file(folder_ / "short.jsonl", lines);
  ASSERT_EQ(done({"text", "prepare", "short.jsonl", "--tokenizer", "end.json", "--out", "short"}),
            "");
  ASSERT_EQ(done({"train", "tiny.toml", "--tokens", "short", "--name", "short", "--dropout", "0.1",
                  "--epochs", "2", "--quiet"}),
            "");
  const Json written = json_lines(
      {"generate", "runs/short", "--prompt", "a", "--tokens", "20", "--greedy", "--json"})[0];
  EXPECT_EQ(written["text"], "b");
  EXPECT_EQ(written["ended"], "end token");
  ASSERT_EQ(done({"export", "runs/short", "--out", "short_hf", "--names", "hugging_face"}), "");
  EXPECT_EQ(Json::parse(read_file(folder_ / "short_hf/config.json"))["eos_token_id"],
            Json::parse(read_file(folder_ / "short/train_000000.json"))["end_token"]);
}

TEST_F(LanguageVerbs, MissingListsOfDocumentsAreRefused) {
  std::string lines;
  for (int i = 0; i < 600; ++i) lines += "{\"text\": \"ab\"}\n";
  write_file(folder_ / "many.jsonl", lines);
  ASSERT_EQ(done({"text", "prepare", "many.jsonl", "--out", "listless"}), "");
  fs::remove(folder_ / "listless/train_000000.documents");
  refused({"train", "tiny.toml", "--tokens", "listless", "--name", "none"},
          "names 1 document, and");
  fs::remove(folder_ / "listless/train_000000.json");
  EXPECT_THAT(run({"data", "check", "tokens", "--tokens", "listless"}).out,
              AllOf(HasSubstr("have no checksums"), Not(HasSubstr("are right"))));
}

TEST_F(LanguageVerbs, FilesOfWindowsGiveTheSamePromptsAndTexts) {
  write_file(folder_ / "unix.txt", "The\nX\n");
  write_file(folder_ / "windows.txt", "\xef\xbb\xbfThe\r\nX\r\n");
  const auto ids = [&](const char* file) {
    std::vector<Json> all;
    for (const Json& line : json_lines(
             {"generate", "runs/tiny", "--prompts", file, "--tokens", "5", "--greedy", "--json"}))
      all.push_back(line["prompt_ids"]);
    return all;
  };
  EXPECT_EQ(ids("windows.txt"), ids("unix.txt"));
  write_file(folder_ / "utf16.txt", std::string("\xff\xfeh\0i\0", 6));
  refused({"generate", "runs/tiny", "--prompts", "utf16.txt"}, "is UTF-16");
  refused({"evaluate", "runs/tiny", "--text", "utf16.txt"}, "iconv -f UTF-16");
}

TEST_F(LanguageVerbs, AClosedPipeEndsTheText) {
  const auto begin = std::chrono::steady_clock::now();
  const Finished finished =
      run({"-c", "timeout 60 '" TRESTLE_PROGRAM
                 "' generate runs/tiny --prompt a --tokens 100000000 --slide | head -c 10; echo \" "
                 "${PIPESTATUS[0]}\""},
          {.program = "/bin/bash"});
  EXPECT_THAT(finished.out, Not(HasSubstr(" 124"))) << "not by its time limit";
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(55));
}

TEST_F(LanguageVerbs, ExportsOverAnotherNameOfItsOwnFolder) {
  ASSERT_EQ(done({"export", "runs/tiny", "--out", "named", "--names", "hugging_face"}), "");
  fs::create_directory_symlink(folder_ / "named", folder_ / "again");
  EXPECT_EQ(done({"export", "again", "--out", "named", "--names", "hugging_face", "--overwrite"}),
            "");
}

TEST_F(LanguageVerbs, EvaluatesAdaptersBesideTheirWeights) {
  ASSERT_EQ(done({"export", "runs/tiny", "--out", "base", "--names", "hugging_face"}), "");
  ASSERT_EQ(done({"train", "tiny.toml", "--weights", "base", "--adapter-rank", "2", "--name",
                  "adapted", "--learning-rate", "0.1", "--quiet"}),
            "");
  ASSERT_EQ(done({"export", "runs/adapted", "--out", "adapters", "--names", "peft"}), "");
  const auto loss = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "evaluate");
    words.insert(words.end(), {"--text", "sea.txt", "--json"});
    return json_lines(words).at(0)["loss"].get<double>();
  };
  EXPECT_NEAR(loss({"base", "--adapter", "adapters"}), loss({"runs/adapted"}), 1e-5);
  EXPECT_GT(std::abs(loss({"base"}) - loss({"runs/adapted"})), 1e-3);
  refused({"evaluate", "runs/adapted", "--adapter", "adapters"}, "--adapter has no effect");
  refused({"train", "tiny.toml", "--weights", "base", "--frozen-type", "int8", "--name", "none"},
          "Set 'adapter_rank' in [adapters] too");
}

TEST_F(LanguageVerbs, PrepareTellsOfWhatAModelCannotLearn) {
  write_file(folder_ / "pairs.jsonl", R"({"prompt": "1+1=", "answer": "2"})"
                                      "\n");
  const Finished pairs = run({"text", "prepare", "pairs.jsonl", "--prompt-key", "prompt", "--out",
                              "pairs", "--overwrite"});
  EXPECT_EQ(pairs.code, 0) << pairs.err;
  EXPECT_THAT(pairs.err, HasSubstr("has no end token"));
  write_file(folder_ / "latin.txt", "caf\xe9");
  EXPECT_THAT(run({"text", "prepare", "latin.txt", "--out", "latin", "--overwrite"}).err,
              HasSubstr("1 document with bytes that are not UTF-8"));
}

}  // namespace
}  // namespace trestle
