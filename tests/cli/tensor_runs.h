#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle {

// A small language model, split.toml, and its run by one process, runs/plain.
class TensorRuns : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    std::string words;
    for (int i = 0; i < 60; ++i) words += text("The ", i, " ships sail, and the sea is wide.\n");
    write_file(folder_ / "sea.txt", words);
    write_file(folder_ / "split.toml", R"([model]
name = "llama"
width = 16
[transformer]
layers = 2
heads = 4
kv_heads = 2
context = 32
attention = "written"
dropout = 0.1
attention_dropout = 0.1
[data]
name = "tokens"
tokens = "sea"
order = "random"
count = 64
validation_windows = 8
[optimizer]
name = "adamw"
learning_rate = 1e-2
clip_grad_norm = 0.5
[devices]
use = "cpu"
threads = 1
[train]
epochs = 2
batch = 8
predict = false
log_every = 1
)");
    const Finished prepared =
        run({"text", "prepare", "sea.txt", "--tokenizer", "bytes", "--out", "sea"});
    ASSERT_EQ(prepared.code, 0) << prepared.err;
    const Finished plain = train("plain", {});
    ASSERT_EQ(plain.code, 0) << plain.err;
  }
  static Finished train(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train", "split.toml", "--name", name, "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  static std::vector<double> numbers(const std::string& name, const char* key) {
    std::vector<double> found;
    for (const std::string& line :
         split(read_file(folder_ / "runs" / name / "metrics.jsonl"), '\n')) {
      if (line.empty()) continue;
      const auto parsed = nlohmann::json::parse(line);
      if (parsed.contains(key)) found.push_back(parsed[key].get<double>());
    }
    return found;
  }
  static void expect_losses_of_plain_run(const std::string& name) {
    expect_losses_of("plain", name);
  }
  static void expect_losses_of(const std::string& other, const std::string& name,
                               double tolerance = 2e-4) {
    for (const char* key : {"loss", "validation_loss", "log_probability"}) {
      const auto expected = numbers(other, key), actual = numbers(name, key);
      ASSERT_EQ(expected.size(), actual.size()) << name << " " << key;
      EXPECT_FALSE(expected.empty()) << key;
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(expected[i], actual[i], tolerance) << name << " " << key << " " << i;
    }
  }
};

}  // namespace trestle
