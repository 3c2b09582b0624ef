// Runs over tensor ranks that stop, fail, resume, or do more than train: samples, generation, 16
// bits, replicas without examples.
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/cli/tensor_runs.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TrainTensorEndings : public TensorRuns {
 protected:
  using Words = std::vector<std::string>;
  static Finished with_flags(const std::string& name, Words flags, const Words& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    Finished finished = train(name, flags);
    EXPECT_EQ(finished.code, 0) << name << ": " << finished.err;
    return finished;
  }
  static std::string sample(const std::string& name, const char* epoch) {
    return read_file(folder_ / "runs" / name / "samples" / epoch);
  }
};

// A stop between two steps of an epoch, and between two batches of a step.
TEST_F(TrainTensorEndings, InterruptedRunsResumeOnOtherMeshesInsideOfAnEpoch) {
  struct Case {
    std::string name;
    Words flags, mesh, other;
  };
  const std::vector<Case> cases = {
      {"steps", {}, {"--mesh", "tensor=2"}, {"--mesh", "pipeline=2,tensor=2"}},
      {"batches",
       {"--accumulate", "3"},
       {"--mesh", "shard=2,tensor=2"},
       {"--mesh", "tensor=1", "--ranks", "1"}}};
  for (const Case& given : cases) {
    const std::string name = "part_" + given.name;
    const std::string whole = given.flags.empty() ? "plain" : "whole_" + given.name;
    if (!given.flags.empty()) with_flags(whole, given.flags, {});
    Words words = {"train", "split.toml", "--name", name, "--json"};
    for (const Words& more : {given.flags, given.mesh})
      words.insert(words.end(), more.begin(), more.end());
    Started stopped(folder_, words);
    ASSERT_TRUE(stopped.wait_for("\"event\":\"step\""));
    stopped.send(SIGINT);
    const Finished first = stopped.wait();
    ASSERT_EQ(first.code, 130) << first.err;
    EXPECT_LT(numbers(name, "gradient_norm").size(), numbers(whole, "gradient_norm").size());
    Words resume = {"train", "--resume", "runs/" + name, "--quiet"};
    resume.insert(resume.end(), given.other.begin(), given.other.end());
    const Finished rest = run(resume);
    ASSERT_EQ(rest.code, 0) << rest.err;
    expect_losses_of(whole, name);
  }
}

TEST_F(TrainTensorEndings, AKilledRankEndsTheRunAndIsReportedOnce) {
  const Finished done =
      run({"-c",
           "T='" TRESTLE_PROGRAM
           "'; $T train split.toml --mesh tensor=2 --epochs 100000 --name killed --json "
           "--deadline 20 > k.out & all=$!; while ! grep -q '\"step\"' k.out; do sleep 0.05; done; "
           "kill -9 $(pgrep -P $all | tail -1); wait $all; echo code $?"},
          {.program = "/bin/sh"});
  EXPECT_THAT(done.out, HasSubstr("code 137"));
  EXPECT_THAT(done.err,
              AllOf(HasSubstr("rank 1 (process "), HasSubstr("exited without an error message")));
}

// The last batch of the validation has one example, for two replicas.
TEST_F(TrainTensorEndings, ReplicasWithoutExamplesAndAnEarlyStopEqualOneProcess) {
  const Words flags = {"--accumulate", "3",  "--set",      "data.validation_windows=9",
                       "--epochs",     "5",  "--patience", "1",
                       "--min-delta",  "100"};
  with_flags("one", flags, {});
  EXPECT_EQ(numbers("one", "validation_loss").size(), 2u) << "it stopped early";
  with_flags("shards", flags, {"--mesh", "shard=2,tensor=2", "--shard-level", "parameters"});
  expect_losses_of("one", "shards");
}

TEST_F(TrainTensorEndings, SixteenBitsEqualOneProcessUpToTheirRounding) {
  const std::vector<std::pair<std::string, Words>> cases = {
      {"bf16", {"--mesh", "pipeline=2,tensor=2", "--sequence-parallel", "true"}},
      {"fp16", {"--mesh", "tensor=2"}}};
  for (const auto& [precision, mesh] : cases) {
    const Words flags = {"--precision", precision, "--epochs", "1"};
    with_flags("one_" + precision, flags, {});
    EXPECT_NE(numbers("plain", "loss")[0], numbers("one_" + precision, "loss")[0]) << precision;
    with_flags("split_" + precision, flags, mesh);
    expect_losses_of("one_" + precision, "split_" + precision, precision == "bf16" ? 2e-2 : 4e-3);
  }
}

// Python opens the weights whole, without the padded rows.
TEST_F(TrainTensorEndings, SamplesGenerationAndWeightsInPythonEqualOneProcess) {
  const Words flags = {"--sample-tokens", "24"};
  with_flags("one", flags, {});
  ASSERT_FALSE(sample("one", "epoch_002.txt").empty());
  with_flags("split", flags,
             {"--mesh", "pipeline=2,tensor=2", "--sequence-parallel", "true",
              "--vocabulary-multiple", "100"});
  for (const char* epoch : {"epoch_001.txt", "epoch_002.txt"})
    EXPECT_EQ(sample("split", epoch), sample("one", epoch));
  const auto continued = [](const std::string& name) {
    return run({"generate", "runs/" + name, "--prompt", "The ", "--tokens", "16", "--greedy"});
  };
  const Finished written = continued("split");
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_GE(written.out.size(), 8u);
  EXPECT_EQ(written.out, continued("one").out);
  write_file(folder_ / "compare.py", R"(from safetensors.numpy import load_file
one, split = (load_file(f"runs/{name}/best.safetensors") for name in ("one", "split"))
assert one.keys() == split.keys(), one.keys() ^ split.keys()
for name, whole in one.items():
    assert whole.shape == split[name].shape, name
    assert abs(whole - split[name]).max() < 2e-3, (name, abs(whole - split[name]).max())
print(len(one), "tensors are equal")
)");
  const Finished done = run({"compare.py"}, {.program = TRESTLE_PYTHON});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("tensors are equal"));
}

// 256 tokens: saved without padded rows, and read into slices of tables with other ones.
TEST_F(TrainTensorEndings, WeightsAreReadWithAnotherPaddingOfTheVocabulary) {
  with_flags("padded", {"--epochs", "1"}, {"--mesh", "tensor=2", "--vocabulary-multiple", "100"});
  const Words weights = {"--epochs", "1", "--weights", "runs/padded/best.safetensors"};
  with_flags("from_padded", weights, {});
  EXPECT_LT(numbers("from_padded", "loss")[0], numbers("plain", "loss")[0] - 0.3)
      << "the weights were loaded";
  with_flags("other_padding", weights, {"--mesh", "tensor=4", "--vocabulary-multiple", "10"});
  expect_losses_of("from_padded", "other_padding");
}

}  // namespace
}  // namespace trestle
