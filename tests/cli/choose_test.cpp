// `trestle choose` as a user types it. tests/plan/techniques_test.cpp has the rows themselves.
#include <gmock/gmock.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "tests/plan/calibrated_machine.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/cli/choose_answers.h"
#include "trestle/plan/search/search.h"

namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ChooseVerb : public ProgramTest {
 protected:
  static std::string machine(const std::string& name) {
    return std::string(TRESTLE_SOURCE_DIR) + "/machines/" + name + ".toml";
  }
  // The output on a terminal on which a person types `answers`.
  static std::string asked(std::vector<std::string> words, const std::string& answers,
                           int code = 0) {
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
    EXPECT_EQ(WEXITSTATUS(status), code) << all;
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
  EXPECT_THAT(json["best"]["devices"], AnyOf(1, 2));
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

TEST_F(ChooseVerb, AsksAgainForWhatIsNoAnswer) {
  const std::string shown = asked({"choose", "--machine", machine("a100-8-per-node")},
                                  "gtp2\ngpt2\n2x\n1x16\n8\n2x4\n0\n16\n");
  EXPECT_THAT(shown, AllOf(HasSubstr("gtp2"), HasSubstr("'2x' is no number of devices"),
                           HasSubstr("are more than the 8 of a node"), Not(HasSubstr("links  "))));
  EXPECT_THAT(shown, AllOf(HasSubstr("'2x4' is no number of examples"),
                           HasSubstr("'0' is no number of examples"), HasSubstr("8 devices of"),
                           HasSubstr("batch 16"), HasSubstr("take: ")));
}

TEST_F(ChooseVerb, AsksThreeTimes) {
  const std::string shown =
      asked({"choose", "gpt2", "--machine", machine("a100-8-per-node")}, "a\nb\nc\n", 2);
  EXPECT_THAT(shown, AllOf(HasSubstr("'c' is no number of devices"), Not(HasSubstr("batch"))));
}

TEST_F(ChooseVerb, EndsAtTheEndOfTheInput) {
  const std::string shown =
      asked({"choose", "--machine", machine("a100-8-per-node")}, "gpt2\n\x04", 2);
  EXPECT_THAT(shown, AllOf(HasSubstr("the input ended before an answer to 'devices'"),
                           Not(HasSubstr("take: "))));
}

TEST_F(ChooseVerb, TakesTheFewestDevicesOverSlowLinks) {
  const Finished done = run({"choose", "gpt2", "--machine", machine("a100-8-per-node"), "--devices",
                             "8x1", "--links", "1Mbit/s", "--batch", "8"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("take: one device · 1 of 8 devices · "));
}

TEST_F(ChooseVerb, HasDefaultsForAllSizesOfConvolutionalNets) {
  for (const char* model : {"resnet101", "resnet101:", "unet", "unet:"}) {
    const Finished done =
        run({"choose", model, "--devices", "2", "--machine", machine("p40-8-per-node")});
    EXPECT_EQ(done.code, 0) << model << done.err;
    EXPECT_THAT(done.out, HasSubstr("2 devices of")) << model;
  }
  const Finished refused = run({"choose", "unet:image"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("Write unet:image=192"), Not(HasSubstr("--unet"))));
}

TEST_F(ChooseVerb, RefusesAMachineThatWasMeasuredElsewhere) {
  write_file(folder_ / "other.toml", plan::to_toml(plan::calibrated_machine()));
  std::vector<std::string> words = {"choose", "gpt2", "--devices", "2", "--machine", "other.toml"};
  const Finished refused = run(words);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("other.toml: was measured on another machine"),
                                 HasSubstr("--for-other-machine")));
  words.emplace_back("--for-other-machine");
  const Finished done = run(words);
  EXPECT_EQ(done.code, 0) << done.err;
}

TEST_F(ChooseVerb, TakesDefaultsWithoutATerminal) {
  const Finished done = run({"choose", "gpt2", "--machine", machine("a100-8-per-node")});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("8 devices"), HasSubstr("batch 64")));
  EXPECT_THAT(done.err, Not(HasSubstr("devices  ")));
}

TEST_F(ChooseVerb, RanksByTheGoal) {
  const std::vector<std::string> words = {
      "choose", "gpt2",   "--machine", machine("p40-8-per-node"), "--devices", "4", "--batch",
      "16",     "--goal", "memory"};
  const Finished done = run(words);
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out,
              AllOf(HasSubstr(" · by memory\n"), HasSubstr("smallest alone that fits: ")));
}

TEST_F(ChooseVerb, KeepsWhatIsGiven) {
  const Finished done = run({"choose", "gpt2", "--machine", machine("a100-8-per-node"), "--devices",
                             "2", "--batch", "16", "--keep", "micro_batch=4", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  const auto json = nlohmann::json::parse(done.out);
  EXPECT_EQ(json["best"]["keep"], "micro_batch=4");
  for (const auto& row : json["techniques"])
    if (row["possible"]) {
      EXPECT_THAT(row["strategy"].get<std::string>(), HasSubstr("micro-batch 4"));
    }
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
  EXPECT_THAT(refusal({"choose", "gpt2", "--devices", "8", "--links", "1Gbit/s", "--machine",
                       machine("a100-8-per-node")}),
              HasSubstr("--links has no effect: 8 devices are in one machine"));
  EXPECT_THAT(
      refusal({"choose", "gpt2", "--devices", "1x16", "--machine", machine("a100-8-per-node")}),
      HasSubstr("16 devices in each of 1 node are more than the 8"));
  EXPECT_THAT(refusal({"choose", "gpt2", "--memory", "0"}),
              HasSubstr("--memory 0: a device needs at least one byte"));
  EXPECT_THAT(refusal({"choose", "gpt2", "--keep", "level=2,micro_batch=4"}),
              HasSubstr("--keep level=2: the techniques that are compared differ in this"));
  EXPECT_THAT(refusal({"choose", "gpt2", "--goal", "money", "--machine", machine("p40-8-per-node"),
                       "--devices", "2"}),
              HasSubstr("has no price"));
  EXPECT_THAT(refusal({"choose", "gpt2", "--for-other-machine"}),
              HasSubstr("--for-other-machine has no effect without --machine"));
  write_recipe("linked", "[train]", "[train]");
  EXPECT_THAT(refusal({"choose", "linked.toml", "--goal", "money"}),
              HasSubstr("--goal money: the devices here have no price"));
  EXPECT_THAT(refusal({"choose", "linked.toml", "--devices", "2x2"}),
              HasSubstr("2 machines need the link between them"));
  EXPECT_THAT(refusal({"choose", "linked.toml", "--devices", "2", "--links", "1Gbit/s"}),
              HasSubstr("--links has no effect: 2 devices are in one machine"));
}

TEST(ChooseAnswers, ReadTheBatch) {
  EXPECT_EQ(cli::parse_batch_answer("16"), 16);
  EXPECT_EQ(cli::parse_batch_answer(text(plan::most_examples)), plan::most_examples);
  for (const char* words : {"0", "2x4", "-1", "", "1073741825", "8.5"})
    EXPECT_THROW(cli::parse_batch_answer(words), UsageError) << words;
}

TEST(ChooseAnswers, KeepTheMachinesLatency) {
  plan::Machine machine;
  machine.between = {.bandwidth = {.value = 100.04e9 / 8}, .latency = {.value = 5e-6}};
  for (const char* equal : {"100 Gbit/s", "100Gbit/s", "100Gbit/s,5us"}) {
    cli::set_link_between(&machine, equal);
    EXPECT_EQ(machine.between.bandwidth.value, 100.04e9 / 8) << equal;
    EXPECT_EQ(machine.between.latency.value, 5e-6) << equal;
  }
  cli::set_link_between(&machine, "25Gbit/s");
  EXPECT_EQ(machine.between.bandwidth.value, 25e9 / 8);
  EXPECT_EQ(machine.between.bandwidth.from, "given: 25Gbit/s");
  EXPECT_EQ(machine.between.latency.value, 5e-6);
  cli::set_link_between(&machine, "25Gbit/s,0us");
  EXPECT_EQ(machine.between.latency.value, 0);
}

TEST(ChooseAnswers, LinksOfARecipe) {
  const auto link = [](const std::string& devices, const std::string& given,
                       const std::string& of_recipe) {
    return cli::link_of_recipe(cli::parse_device_count(devices), given, of_recipe);
  };
  EXPECT_EQ(link("2x2", "1Gbit/s", ""), "1Gbit/s");
  EXPECT_EQ(link("2x2", "", "5Gbit/s"), "5Gbit/s");
  EXPECT_EQ(link("2x2", "1Gbit/s", "5Gbit/s"), "1Gbit/s");
  EXPECT_EQ(link("4", "", "5Gbit/s"), "5Gbit/s");
  EXPECT_EQ(link("1x4", "", "5Gbit/s"), "");
  EXPECT_EQ(link("4", "", ""), "");
  EXPECT_THROW(link("2x2", "", ""), UsageError);
  EXPECT_THROW(link("4", "1Gbit/s", ""), UsageError);
  EXPECT_THROW(link("1x4", "1Gbit/s", "5Gbit/s"), UsageError);
}

TEST(ChooseAnswers, NameNoFlagsOfPlan) {
  EXPECT_EQ(cli::without_plan_flags("--unet: 'a'\n  Write --unet image=192.", "unet"),
            "unet: 'a'\n  Write unet:image=192.");
  EXPECT_EQ(cli::without_plan_flags("Write --model NAME, or --model NAME,sequence=4096", "model"),
            "Write NAME, or NAME,sequence=4096");
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
