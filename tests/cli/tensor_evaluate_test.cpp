// `trestle evaluate --mesh tensor=N`: ranks that score text with one split model.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/tensor_runs.h"

namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

class EvaluateTensor : public TensorRuns {
 protected:
  static void SetUpTestSuite() {
    TensorRuns::SetUpTestSuite();
    write_file(
        folder_ / "q.jsonl",
        R"({"prompt": "The 7 ships sail, and the sea", "choices": ["is wide", "QZ@@QZQ"], "answer": 0})"
        "\n"
        R"({"question": "The 8 ships", "choices": ["%%&&", "sail"], "answer": 1})"
        "\n"
        R"({"prompt": "The", "choices": ["1 ships", "2 ships", "3 ships"], "answer": 2})"
        "\n");
  }
  static Words joined(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static Json scored(const Words& words) {
    const Finished finished = run(joined(words, {"--json"}));
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_EQ(std::ranges::count(finished.out, '\n'), 1) << "one rank prints: " << finished.out;
    return finished.code == 0 ? Json::parse(finished.out) : Json();
  }
  // Equal to rounding, but for the time.
  static void expect_same(const Json& expected, const Json& actual) {
    ASSERT_EQ(expected.size(), actual.size());
    for (const auto& [key, value] : expected.items()) {
      if (key == "seconds") continue;
      if (value.is_number_float())
        EXPECT_NEAR(value.get<double>(), actual.at(key).get<double>(),
                    2e-5 * std::abs(value.get<double>()))
            << key;
      else
        EXPECT_EQ(value, actual.at(key)) << key;
    }
  }
  static std::string refusal(const Words& words) {
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, 2) << finished.out << finished.err;
    return finished.err;
  }
};

TEST_F(EvaluateTensor, RanksScoreATextAsOneProcess) {
  const Words text = {"evaluate", "runs/plain", "--text", "sea.txt"};
  const Words windows = joined(text, {"--window", "9", "--stride", "5"});
  const Words launch = {"launch", "-n", "2", "--prefix", "off", "--", TRESTLE_PROGRAM};
  const Json expected = scored(text);
  EXPECT_GT(expected.at("perplexity"), 1);
  expect_same(expected, scored(joined(text, {"--mesh", "tensor=2", "--devices", "virtual:2"})));
  expect_same(expected, scored(joined(launch, text)));
  expect_same(scored(windows), scored(joined(windows, {"--ranks", "threads:4"})));
  const Json whole = scored(joined(text, {"--precision", "bf16"})),
             split = scored(joined(text, {"--precision", "bf16", "--mesh", "tensor=2"}));
  EXPECT_NEAR(whole.at("loss").get<double>(), split.at("loss").get<double>(), 2e-2);
  const Finished words = run(joined(text, {"--mesh", "tensor=2"}));
  EXPECT_THAT(words.out, AllOf(HasSubstr("perplexity    "), HasSubstr("bits per byte ")));
}

TEST_F(EvaluateTensor, RanksAnswerQuestionsAsOneProcess) {
  const Words words = {"evaluate", "runs/plain", "--choices", "q.jsonl"};
  const Json expected = scored(words);
  EXPECT_EQ(expected.at("questions"), 3);
  expect_same(expected, scored(joined(words, {"--mesh", "tensor=2"})));
  expect_same(expected, scored(joined(words, {"--ranks", "threads:4"})));
}

// Rank 0 reads the text, and the other ranks get what it read.
TEST_F(EvaluateTensor, ThreadsScoreAPipe) {
  const auto piped = [](const std::string& ranks) {
    return run(
        {"-c", "cat sea.txt | '" TRESTLE_PROGRAM "' evaluate runs/plain --text /dev/stdin --json " +
                   ranks},
        {.program = "/bin/sh"});
  };
  const Finished threads = piped("--ranks threads:2");
  ASSERT_EQ(threads.code, 0) << threads.err;
  EXPECT_GT(Json::parse(threads.out).at("tokens"), 1000);
  const Finished processes = piped("--mesh tensor=2");
  EXPECT_EQ(processes.code, 2);
  EXPECT_THAT(processes.err, HasSubstr("/dev/stdin: is a pipe or a device"));
}

TEST_F(EvaluateTensor, RefusesWhatRanksCannotScore) {
  const Words text = {"evaluate", "runs/plain", "--text", "sea.txt"};
  EXPECT_THAT(refusal(joined(text, {"--mesh", "tensor=3"})),
              HasSubstr("cannot be split over 3 tensor ranks, but over 1, 2, 4"));
  EXPECT_THAT(refusal(joined(text, {"--mesh", "pipeline=2"})), HasSubstr("tensor ranks alone"));
  EXPECT_THAT(refusal({"evaluate", "runs/plain", "--mesh", "tensor=2"}),
              HasSubstr("--mesh has no effect without --text or --choices"));
  const Words launch = {"launch", "-n", "2", "--prefix", "off", "--", TRESTLE_PROGRAM};
  EXPECT_THAT(refusal(joined(launch, {"evaluate", "runs/plain"})),
              HasSubstr("evaluate without --text or --choices runs on one process"));
  // Each error is found by all ranks or by the first alone, and is printed once.
  write_file(folder_ / "short.txt", "");
  for (const Words& wrong : {Words{"--text", "short.txt"}, Words{"--choices", "none.jsonl"},
                             Words{"--text", "sea.txt", "--window", "33"}}) {
    const Finished refused =
        run(joined(joined({"evaluate", "runs/plain", "--mesh", "tensor=2"}, wrong), {}));
    EXPECT_NE(refused.code, 0) << join(wrong, " ");
    EXPECT_EQ(refused.err.find("trestle: "), 0U) << refused.err;
    EXPECT_EQ(refused.err.rfind("trestle: "), 0U) << refused.err;
    EXPECT_THAT(refused.err, Not(HasSubstr("ended with an exception")));
  }
}

}  // namespace
}  // namespace trestle
