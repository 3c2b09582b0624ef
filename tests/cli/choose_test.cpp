// `trestle choose` as a user types it. tests/plan/techniques_test.cpp has the rows themselves.
#include <gmock/gmock.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/cli/choose_answers.h"

namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ChooseVerb : public ProgramTest {
 protected:
  static std::string machine(const std::string& name) {
    return std::string(TRESTLE_SOURCE_DIR) + "/machines/" + name + ".toml";
  }
  // The output on a terminal on which a person types `answers`.
  static std::string asked(std::vector<std::string> words, const std::string& answers) {
    words.insert(words.begin(), TRESTLE_PROGRAM);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int terminal = -1;
    const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
    if (child == 0) {
      if (chdir(folder_.c_str()) != 0) _exit(126);
      execv(argv[0], argv.data());
      _exit(127);
    }
    EXPECT_EQ(write(terminal, answers.data(), answers.size()), std::ssize(answers));
    std::string all;
    char buffer[4096];
    for (ssize_t got = 0; (got = read(terminal, buffer, sizeof buffer)) > 0;)
      all.append(buffer, static_cast<std::size_t>(got));
    close(terminal);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << all;
    return all;
  }
};

// docs/which_one.md is written from the program's output.
TEST_F(ChooseVerb, PrintsThePageOnWhichOne) {
  const std::string page = read_file(std::string(TRESTLE_SOURCE_DIR) + "/docs/which_one.md");
  const Finished done =
      run({"choose", "llama-2-7b", "--devices", "2x4", "--machine", machine("rtx4090-4-per-node"),
           "--links", "25Gbit/s,10us", "--batch", "64"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(page, HasSubstr("```\n" + done.out + "```"));
}

TEST_F(ChooseVerb, ComparesTheTechniquesForARecipe) {
  write_file(folder_ / "tiny.toml",
             "[model]\nname = \"toy\"\nwidth = 8\nclasses = 4\nchannels = 12\n[data]\n"
             "name = \"random\"\ntargets = \"normal\"\ncount = 24\nshape = [12]\n[train]\n"
             "batch = 12\nepochs = 1\nloss = \"mean_squared_error\"\npredict = false\n"
             "[devices]\nuse = \"virtual:2x64MiB\"\nthreads = 1\n");
  const Finished done = run({"choose", "tiny.toml", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  const auto json = nlohmann::json::parse(done.out);
  EXPECT_EQ(json["techniques"].size(), 12);
  for (const auto& row : json["techniques"])
    if (row["name"] != "offload" && row["name"] != "HSDP") {  // two rows of two ranks are four
      EXPECT_TRUE(row["possible"]) << row;
    }
  EXPECT_EQ(json["best"]["devices"], 2);
  EXPECT_TRUE(json["best"]["fits"]);
}

TEST_F(ChooseVerb, AsksOnATerminal) {
  const std::string shown =
      asked({"choose", "--machine", machine("a100-8-per-node")}, "gpt2\n2x2\n\n16\n");
  EXPECT_THAT(shown,
              AllOf(HasSubstr("devices  8, or 2x4"), HasSubstr("[800 Gbit/s: the machine's]"),
                    HasSubstr("[32: 8 for each device]"), HasSubstr("4 devices of"),
                    HasSubstr("batch 16"), HasSubstr("take: ")));
}

TEST_F(ChooseVerb, TakesDefaultsWithoutATerminal) {
  const Finished done = run({"choose", "gpt2", "--machine", machine("a100-8-per-node")});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("8 devices"), HasSubstr("batch 64")));
  EXPECT_THAT(done.err, Not(HasSubstr("devices  ")));
}

TEST_F(ChooseVerb, RefusesWhatIsNoAnswer) {
  const auto refusal = [](const std::vector<std::string>& words) {
    const Finished done = run(words);
    EXPECT_EQ(done.code, 2) << join(words, " ");
    return done.err;
  };
  EXPECT_THAT(refusal({"choose", "gtp2"}), HasSubstr("gpt2"));
  EXPECT_THAT(refusal({"choose", "nothing.toml"}), HasSubstr("nothing.toml"));
  EXPECT_THAT(refusal({"choose", "bert:layers=3"}), HasSubstr("unknown kind of model 'bert'"));
  EXPECT_THAT(refusal({"choose", "gpt2", "--devices", "2x"}), HasSubstr("no number of devices"));
  EXPECT_THAT(refusal({"choose", "gpt2", "--devices", "9999x9999"}),
              HasSubstr("no number of devices"));
  EXPECT_THAT(refusal({"choose", "gpt2", "--machine", "no_such"}), HasSubstr("no such machine"));
  EXPECT_THAT(
      refusal({"choose", "gpt2", "--links", "fast", "--machine", machine("a100-8-per-node")}),
      HasSubstr("fast"));
}

TEST(ChooseAnswers, KnowTheProfileOfAGpu) {
  const std::vector<std::string> profiles = {"a100-8-per-node", "h100-8-per-node",
                                             "rtx4090-4-per-node"};
  EXPECT_EQ(cli::machine_of_gpu("NVIDIA A100-SXM4-80GB", profiles), "a100-8-per-node");
  EXPECT_EQ(cli::machine_of_gpu("NVIDIA GeForce RTX 4090", profiles), "rtx4090-4-per-node");
  EXPECT_EQ(cli::machine_of_gpu("NVIDIA T4", profiles), "");
  EXPECT_EQ(cli::machine_of_gpu("", profiles), "");
}

TEST(ChooseAnswers, ReadTheDriversNameOfAGpu) {
  const std::filesystem::path driver = std::filesystem::path(testing::TempDir()) / "gpus";
  std::filesystem::create_directories(driver / "0000:01:00.0");
  write_file(driver / "0000:01:00.0" / "information", "Model: \t\t NVIDIA H100 PCIe\nIRQ: 3\n");
  EXPECT_EQ(cli::first_gpu_name(driver), "NVIDIA H100 PCIe");
  EXPECT_EQ(cli::first_gpu_name(driver / "none"), "");
}

}  // namespace
}  // namespace trestle
