// `trestle generate --mesh tensor=N`: ranks that write text with one split model.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/cli/tensor_runs.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

class GenerateTensor : public TensorRuns {
 protected:
  static Words joined(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static std::vector<Json> lines(const Words& words) {
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, 0) << finished.err;
    std::vector<Json> all;
    for (const std::string& line : split(finished.out, '\n'))
      if (!line.empty()) all.push_back(Json::parse(line));
    return all;
  }
  // The lines of --json without times; the gap may differ by rounding.
  static void expect_same_lines(const Words& words, const Words& ranks) {
    const auto expected = lines(words), actual = lines(joined(words, ranks));
    ASSERT_EQ(expected.size(), actual.size());
    ASSERT_FALSE(expected.empty());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      for (const char* key : {"prompt", "prompt_ids", "text", "ids", "ended", "smallest_gap_at"})
        EXPECT_EQ(expected[i].value(key, Json()), actual[i].value(key, Json())) << i << " " << key;
      const double gap = expected[i]["smallest_gap"];
      EXPECT_GT(gap, 1e-4) << "rounding may change this text";
      EXPECT_NEAR(gap, actual[i]["smallest_gap"].get<double>(), 1e-4) << i;
    }
  }
  static std::string refusal(const Words& words, int code = 2) {
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, code) << finished.out << finished.err;
    return finished.err;
  }
};

TEST_F(GenerateTensor, RanksWriteTheTextOfOneProcess) {
  write_file(folder_ / "prompts.txt", "The\nThe 7 ships sail, and\nX\nThe\n");
  const Words greedy = {"generate", "runs/plain", "--greedy", "--prompt", "The ships",
                        "--slide",  "--tokens",   "40",       "--json"};
  const Words drawn = {"generate",   "runs/plain", "--temperature", "1.1", "--seed", "6",
                       "--tokens",   "12",         "--stop",        "e.",  "--json", "--prompts",
                       "prompts.txt"};
  const Words ids = {"generate", "runs/plain", "--ids",  "84,104,101",   "--seed", "2",
                     "--tokens", "12",         "--json", "--checkpoint", "last"};
  expect_same_lines(greedy, {"--mesh", "tensor=2"});
  expect_same_lines(greedy, {"--ranks", "threads:4"});
  for (const Words& words : {drawn, joined(drawn, {"--batch", "3"}), ids})
    for (const char* ranks : {"threads:2", "threads:4"})
      expect_same_lines(words, {"--ranks", ranks});
  expect_same_lines(drawn, {"--ranks", "4"});
}

TEST_F(GenerateTensor, RanksOfALauncherSplitTheLayers) {
  const Words words = {"generate", "runs/plain", "--greedy", "--tokens", "9", "--prompt", "The"};
  const Words launch = {"launch", "-n", "2", "--prefix", "off", "--", TRESTLE_PROGRAM};
  const std::string expected = run(words).out;
  EXPECT_EQ(run(joined(launch, words)).out, expected);
  EXPECT_EQ(run(joined(launch, joined(words, {"--mesh", "tensor=2"}))).out, expected);
  EXPECT_THAT(refusal(joined(launch, joined(words, {"--mesh", "tensor=4"}))),
              HasSubstr("--mesh tensor=4 lays out 4 ranks, but there are 2"));
}

// Python's models: 4 heads, and in those of Llama 2 of keys and values.
TEST_F(GenerateTensor, RanksReadTheirSlicesOfPublicWeights) {
  const std::string folder = TRESTLE_SOURCE_DIR "/tests/golden/transformers/";
  for (const char* model : {"gpt2", "gpt2_untied", "llama_bin", "llama_bias", "llama_sharded",
                            "llama_gguf/model.gguf"}) {
    SCOPED_TRACE(model);
    const Words words = {"generate", folder + model, "--ids",    "5,17,3",
                         "--tokens", "12",           "--greedy", "--json"};
    for (const char* ranks : {"threads:2", "threads:4"})
      expect_same_lines(words, {"--ranks", ranks});
  }
}

// A run's own adapters, those of a folder beside public weights, and int8 matrices.
TEST_F(GenerateTensor, RanksWriteWithAdaptersAndInt8Matrices) {
  ASSERT_EQ(run({"export", "runs/plain", "--out", "frozen", "--names", "hugging_face"}).code, 0);
  ASSERT_EQ(train("adapted", {"--weights", "frozen/model.safetensors", "--adapter-rank", "2",
                              "--adapter-targets", R"(["q_proj", "v_proj", "down_proj"])",
                              "--frozen-type", "int8", "--epochs", "1"})
                .code,
            0);
  ASSERT_EQ(run({"export", "runs/adapted", "--out", "peft", "--names", "peft"}).code, 0);
  const Words flags = {"--greedy", "--prompt", "The ships", "--tokens", "20", "--json"};
  for (const Words& model :
       {Words{"generate", "runs/adapted"}, Words{"generate", "frozen", "--adapter", "peft"},
        Words{"generate", "frozen", "--precision", "int8"},
        Words{"generate", "runs/plain", "--precision", "int8"},
        Words{"generate", "frozen", "--precision", "int8", "--adapter", "peft"}})
    for (const char* ranks : {"threads:2", "threads:4"}) {
      SCOPED_TRACE(model.at(1) + " " + model.back() + " " + ranks);
      expect_same_lines(joined(model, flags), {"--ranks", ranks});
    }
}

TEST_F(GenerateTensor, EachRankHasItsDevice) {
  const Words words = {"generate", "runs/plain", "--greedy", "--prompt", "The", "--json"};
  expect_same_lines(words, {"--mesh", "tensor=2", "--devices", "virtual:2"});
  expect_same_lines(words, {"--ranks", "threads:2", "--devices", "virtual:2"});
  EXPECT_THAT(refusal(joined(words, {"--mesh", "tensor=4", "--devices", "virtual:2"})),
              HasSubstr("2 devices are given for 4 ranks"));
}

TEST_F(GenerateTensor, ConversationsAreReadByTheFirstRank) {
  ASSERT_EQ(train("chat", {"--context", "128", "--max-steps", "3", "--sample-tokens", "0"}).code,
            0);
  fs::copy_file(fs::path(TRESTLE_SOURCE_DIR) / "tests/golden/tokens/chat/chatml.jinja",
                folder_ / "runs/chat/tokenizer/chat_template.jinja");
  const Words chat = {"generate", "runs/chat", "--chat", "--tokens", "8", "--json"};
  expect_same_lines(joined(chat, {"--prompt", "a", "--prompt", "b"}), {"--mesh", "tensor=2"});
  const auto said = [](const std::string& ranks) {
    const Finished finished =
        run({"-c", "printf 'a\\nb' | '" TRESTLE_PROGRAM "' generate runs/chat --chat --tokens 8 " +
                       ranks},
            {.program = "/bin/sh"});
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.out;
  };
  const std::string expected = said("");
  EXPECT_GE(std::ranges::count(expected, '\n'), 2);
  for (const char* ranks : {"--mesh tensor=2", "--ranks threads:2"})
    EXPECT_EQ(said(ranks), expected) << ranks;
  const Finished none =
      run({"-c", "'" TRESTLE_PROGRAM "' generate runs/chat --chat --mesh tensor=2 < /dev/null"},
          {.program = "/bin/sh"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, AllOf(HasSubstr("--chat cannot read a terminal over ranks"),
                              HasSubstr("--ranks threads:2")));
}

TEST_F(GenerateTensor, RefusesOtherRanks) {
  const Words words = {"generate", "runs/plain", "--prompt", "The"};
  const auto refused = [&](const Words& more) { return refusal(joined(words, more)); };
  EXPECT_THAT(refused({"--mesh", "tensor=3"}),
              AllOf(HasSubstr("heads = 4, kv_heads = 2"),
                    HasSubstr("cannot be split over 3 tensor ranks, but over 1, 2, 4")));
  EXPECT_THAT(refused({"--mesh", "pipeline=2"}), HasSubstr("tensor ranks alone"));
  EXPECT_THAT(refused({"--mesh", "replicate=2,tensor=2"}), HasSubstr("tensor ranks alone"));
  EXPECT_THAT(refused({"--mesh", "tensor=2", "--ranks", "3"}), HasSubstr("lays out 2 ranks"));
  EXPECT_THAT(refused({"--mesh", "tensors=2"}), HasSubstr("did you mean 'tensor'?"));
  const std::string missing = refusal({"generate", "none", "--prompt", "a", "--mesh", "tensor=2"});
  EXPECT_EQ(missing.find("there is no such model"), missing.rfind("there is no such model"))
      << "one rank prints the error: " << missing;
}

// Each of them reads a signal at another place of its step.
TEST_F(GenerateTensor, CtrlCEndsTheTextOnAllRanks) {
  const Words endless = {"generate",  "runs/plain", "--prompt", "The",     "--slide", "--tokens",
                         "100000000", "--prompt",   "X",        "--batch", "1",       "--greedy"};
  for (const Words& ranks : {Words{"--mesh", "tensor=2"}, Words{"--ranks", "threads:2"}}) {
    Started stopped(folder_, joined(endless, ranks));
    ASSERT_TRUE(stopped.wait_for("The "));
    stopped.send(SIGINT);
    const Finished finished = stopped.wait();
    EXPECT_EQ(finished.code, 130) << finished.err;
    EXPECT_THAT(finished.err, HasSubstr("the text ends here"));
    EXPECT_THAT(finished.err, Not(ContainsRegex("rank [0-9]"))) << "no rank failed";
    EXPECT_THAT(finished.out, Not(HasSubstr("\nX"))) << "the second text has not begun";
  }
}

// Sends a signal to the process of the last rank once there is text. Each test has its own file,
// because the shell can look before the program has made or emptied it.
std::string harm_last_rank(const std::string& signal) {
  return "'" TRESTLE_PROGRAM
         "' generate runs/plain --prompt The --slide --greedy --tokens 100000000 --mesh tensor=2 "
         "> " +
         signal + ".out & all=$!; while ! grep -qs '.\\{40\\}' " + signal +
         ".out; do sleep 0.05; done; kill -" + signal +
         " $(pgrep -P $all | tail -1); wait $all; echo code $?";
}

TEST_F(GenerateTensor, ASignalToAnotherRankEndsTheText) {
  const Finished done = run({"-c", harm_last_rank("TERM")}, {.program = "/bin/sh"});
  EXPECT_THAT(done.out, HasSubstr("code 143")) << done.err;
  EXPECT_THAT(done.err, HasSubstr("a signal to rank 1 stopped all ranks"));
}

TEST_F(GenerateTensor, AKilledRankEndsTheTextAndIsReportedOnce) {
  const Finished done = run({"-c", harm_last_rank("KILL")}, {.program = "/bin/sh"});
  EXPECT_THAT(done.out, HasSubstr("code 137")) << done.err;
  EXPECT_THAT(done.err,
              AllOf(HasSubstr("rank 1 (process "), HasSubstr("exited without an error message")));
}

// A pager reads when its user turns the page. The pipe is full before the last prompts are written.
TEST_F(GenerateTensor, RanksWaitLongerThanTheirDeadlineForASlowReader) {
  std::string prompts;
  for (int i = 0; i < 24; ++i) prompts += text("The ", i, " ships sail\n");
  write_file(folder_ / "prompts.txt", prompts);
  const Words words = {"generate", "runs/plain", "--greedy", "--prompts", "prompts.txt",
                       "--batch",  "4",          "--tokens", "16",        "--json"};
  const auto texts = [](const std::string& lines) {
    std::vector<std::string> all;
    for (const std::string& line : split(lines, '\n'))
      if (!line.empty()) all.push_back(Json::parse(line).at("text"));
    return all;
  };
  const auto expected = texts(run(words).out);
  ASSERT_EQ(expected.size(), 24U);
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(fcntl(reader, F_SETPIPE_SZ, 4096), 0);
  Started blocked(folder_, joined(words, {"--mesh", "tensor=2", "--deadline", "6"}),
                  {.out = pipe.string()});
  int held = 0;  // bytes in the pipe
  for (int tries = 0; held < 2000 && tries < 1000; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ASSERT_EQ(ioctl(reader, FIONREAD, &held), 0);
  }
  std::this_thread::sleep_for(std::chrono::seconds(9));
  ASSERT_EQ(fcntl(reader, F_SETFL, 0), 0);
  std::string out(4096, ' '), all;
  for (ssize_t count = 0; (count = read(reader, out.data(), out.size())) > 0;)
    all.append(out, 0, static_cast<std::size_t>(count));
  close(reader);
  const Finished finished = blocked.wait();
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  EXPECT_EQ(texts(all), expected);
}

TEST_F(GenerateTensor, AClosedPipeEndsAllRanks) {
  const Finished finished =
      run({"-c", "timeout 60 '" TRESTLE_PROGRAM
                 "' generate runs/plain --prompt a --tokens 100000000 --slide --mesh tensor=2 | "
                 "head -c 10; echo \" ${PIPESTATUS[0]}\""},
          {.program = "/bin/bash"});
  EXPECT_THAT(finished.out, Not(HasSubstr(" 124"))) << "not by its time limit";
}

}  // namespace
}  // namespace trestle
