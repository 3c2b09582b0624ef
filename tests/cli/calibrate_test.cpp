// `trestle calibrate` as a user types it. tests/train/calibrate_test.cpp checks its figures.
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using CalibrateVerb = ProgramTest;

std::string replaced(std::string words, const std::string& from, const std::string& to) {
  const std::size_t at = words.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? words : words.replace(at, from.size(), to);
}

// Measures messages of threads and of processes, and plans with the file.
TEST_F(CalibrateVerb, WritesAFileThatPlansUse) {
  const Finished done =
      run({"calibrate", "--quick", "--ranks", "2", "--out", "mine.toml", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  const auto json = nlohmann::json::parse(done.out);
  EXPECT_EQ(json["file"], "mine.toml");
  EXPECT_EQ(json["measured_on"]["gpu"], "");
  EXPECT_EQ(json["figures"]["inside_latency"]["is"], "measured");
  EXPECT_EQ(json["figures"]["between_latency"]["is"], "assumed");
  std::set<std::string> tables;
  for (const auto& table : json["messages"])
    tables.insert(text(table["over"].get<std::string>(), " ", table["kind"].get<std::string>()));
  EXPECT_EQ(tables.size(), 8U);  // three collectives and a message, over threads and gloo
  EXPECT_TRUE(tables.contains("gloo reduce_scatter"));

  write_file(folder_ / "tiny.toml", R"([model]
name = "mlp"
width = 8
classes = 4
channels = 12
[data]
name = "random"
targets = "normal"
count = 24
shape = [12]
[train]
batch = 12
epochs = 1
loss = "mean_squared_error"
predict = false
[devices]
use = "virtual:2x64MiB"
threads = 1
)");
  const std::vector<std::string> recipe = {"plan", "tiny.toml", "--machine", "mine.toml"};
  const Finished planned = run(recipe);
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out, AllOf(HasSubstr("mlp · 2 devices of mine"),
                                 HasSubstr("those of mine.toml, over gloo, measured on")));
  const std::vector<std::string> gpt = {
      "plan",      "--gpt",     "layers=2,hidden=64,heads=4,sequence=32,vocabulary=128",
      "--devices", "2",         "--batch",
      "4",         "--machine", "mine.toml"};
  const Finished by_sizes = run(gpt);
  ASSERT_EQ(by_sizes.code, 0) << by_sizes.err;
  EXPECT_THAT(by_sizes.out, HasSubstr("constants that were measured on"));

  EXPECT_THAT(run({"doctor"}).out, HasSubstr("mine (measured here on "));
  const std::string words = read_file(folder_ / "mine.toml");
  write_file(folder_ / "mine.toml", replaced(words, "cores = ", "cores = 1"));
  for (auto command : {recipe, gpt}) {
    const Finished refused = run(command);
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, AllOf(HasSubstr("mine.toml: was measured on another machine"),
                                   HasSubstr("cores: 1"), HasSubstr("--for-other-machine")));
    command.emplace_back("--for-other-machine");
    EXPECT_EQ(run(command).code, 0);
  }
  write_file(folder_ / "mine.toml", words.substr(0, words.size() / 2));
  EXPECT_THAT(run(gpt).err, HasSubstr("mine.toml"));
  EXPECT_EQ(run(gpt).code, 2);
}

TEST_F(CalibrateVerb, RefusesWhatCannotBe) {
  const auto refusal = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"calibrate", "--quick", "--out", "not_written.toml"});
    const Finished refused = run(words);
    EXPECT_EQ(refused.code, 2) << join(words, " ");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "not_written.toml"));
    return refused.err;
  };
  EXPECT_THAT(refusal({"--ranks", "two"}), HasSubstr("--ranks takes numbers from 1 to 64"));
  EXPECT_THAT(refusal({"--ranks", "2,-4"}), HasSubstr("not '-4'"));
  EXPECT_THAT(refusal({"--backend", "mpi"}), HasSubstr("--backend takes threads, gloo or nccl"));
  EXPECT_THAT(refusal({"--backend", "nccl"}), HasSubstr("--backend nccl needs GPUs"));
  EXPECT_THAT(refusal({"--device", "cuda:0"}), HasSubstr("CUDA devices were requested"));
  EXPECT_THAT(refusal({"--device", "tpu"}), HasSubstr("tpu"));
  EXPECT_THAT(run({"calibrate"}).err, HasSubstr("--out"));
  const Finished no_folder = run({"calibrate", "--out", "nowhere/mine.toml"});
  EXPECT_EQ(no_folder.code, 2);
  EXPECT_THAT(no_folder.err, HasSubstr("nowhere"));
  write_file(folder_ / "there.toml", "mine");
  EXPECT_EQ(run({"calibrate", "--out", "there.toml"}).code, 2);
  EXPECT_EQ(read_file(folder_ / "there.toml"), "mine");
  EXPECT_THAT(run({"plan", "--gpt", "layers=2,hidden=64,heads=4,sequence=32,vocabulary=128",
                   "--devices", "2", "--batch", "4", "--for-other-machine"})
                  .err,
              HasSubstr("--for-other-machine has no effect"));
}

TEST_F(CalibrateVerb, CtrlCLeavesNoFile) {
  Started started(folder_, {"calibrate", "--ranks", "1", "--out", "stopped.toml"});
  std::this_thread::sleep_for(std::chrono::seconds(1));
  started.send(SIGINT);
  EXPECT_EQ(started.wait().code, 130);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "stopped.toml"));
}

TEST_F(CalibrateVerb, AFullDiskLeavesNoFile) {
  const Finished full =
      run({"calibrate", "--quick", "--ranks", "1", "--out", "full.toml"}, {.largest_file = 500});
  EXPECT_EQ(full.code, 1) << full.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "full.toml"));
}

}  // namespace
}  // namespace trestle
