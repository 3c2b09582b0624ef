// `trestle train --mesh tensor=N` for models that a plan splits.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainSplitLayers : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    for (const auto& [name, shape] : {std::pair<std::string, std::string>{"two_linears", "10"},
                                      {"mlp", "10"},
                                      {"toy", "12"},
                                      {"stands", "10"},
                                      {"resnet18_flat", "1, 28, 28"}})
      write_file(folder_ / (name + ".toml"), text("[model]\nname = \"", name, R"("
width = 6
classes = 5
[data]
name = "random"
targets = "normal"
count = 12
shape = [)",
                                                  shape, R"(]
[optimizer]
name = "adamw"
learning_rate = 1e-2
clip_grad_norm = 0.5
[devices]
use = "cpu"
threads = 1
[train]
epochs = 2
batch = 6
loss = "mean_squared_error"
predict = false
log_every = 1
)"));
  }
  static Finished train(const std::string& recipe, const std::string& name,
                        const std::vector<std::string>& more, RunWith with = {}) {
    std::vector<std::string> words = {"train", recipe + ".toml", "--name", name, "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words, with);
  }
  static void expect_losses_of(const std::string& other, const std::string& name,
                               double tolerance = 1e-5) {
    const auto expected = numbers(other, "loss"), actual = numbers(name, "loss");
    ASSERT_EQ(expected.size(), actual.size()) << name;
    EXPECT_FALSE(expected.empty());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(expected[i], actual[i], tolerance) << name << " " << i;
  }
  static std::string refusal_of(const std::vector<std::string>& words, RunWith with = {}) {
    const Finished finished = run(words, with);
    EXPECT_EQ(finished.code, 2) << finished.out << finished.err;
    return finished.err;
  }
};

// The toy has dropout and skips, the flat ResNet batch norms between split convolutions.
TEST_F(TrainSplitLayers, ModelsTrainAsOneProcessByTheirOwnPlans) {
  // The bias of a convolution before a batch norm has a gradient of rounding errors alone, which
  // AdamW would follow.
  const std::vector<std::string> sgd = {"--optimizer.name", "sgd"};
  for (const std::string model : {"two_linears", "mlp", "toy", "resnet18_flat"}) {
    std::vector<std::string> more;
    if (model == "resnet18_flat") more = sgd;
    ASSERT_EQ(train(model, model, more).code, 0);
    more.insert(more.end(), {"--mesh", "tensor=2"});
    const Finished finished = train(model, model + "_split", more);
    ASSERT_EQ(finished.code, 0) << finished.err;
    expect_losses_of(model, model + "_split");
  }
}

TEST_F(TrainSplitLayers, MeshesTrainAsOneProcess) {
  ASSERT_EQ(train("mlp", "one", {}).code, 0);
  for (const auto& [name, mesh] :
       {std::pair<std::string, std::string>{"stages", "pipeline=2,tensor=2"},
        {"replicas", "replicate=2,tensor=2"},
        {"shards", "shard=2,tensor=2"},
        {"three", "tensor=3"}}) {
    const Finished finished = train("mlp", name, {"--mesh", mesh});
    ASSERT_EQ(finished.code, 0) << finished.err;
    expect_losses_of("one", name);
  }
}

TEST_F(TrainSplitLayers, UNetTrainsIsSavedWholeAndResumesOnOtherMeshes) {
  const std::vector<std::string> more = {"--devices", "cpu",       "--threads",
                                         "1",         "--predict", "false"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  ASSERT_EQ(train("small", "plain", with({})).code, 0);
  const Finished split = train("small", "split", with({"--mesh", "tensor=2", "--epochs", "1"}));
  ASSERT_EQ(split.code, 0) << split.err;
  const auto epochs =
      text(numbers("plain", "epoch").empty() ? 0.0 : numbers("plain", "epoch").back());
  const Finished resumed = run({"train", "--resume", "runs/split", "--mesh", "tensor=1", "--ranks",
                                "1", "--epochs", epochs, "--quiet"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  expect_losses_of("plain", "split", 2e-4);
  // A rank reads its slices of initial weights, running statistics too.
  const std::vector<std::string> weights = {"--weights", "runs/plain/best.safetensors", "--epochs",
                                            "1"};
  ASSERT_EQ(train("small", "further", with(weights)).code, 0);
  std::vector<std::string> on_three = with(weights);
  on_three.insert(on_three.end(), {"--mesh", "tensor=3"});
  const Finished further = train("small", "further_split", on_three);
  ASSERT_EQ(further.code, 0) << further.err;
  expect_losses_of("further", "further_split", 2e-4);
}

TEST_F(TrainSplitLayers, RulesOfTheRecipeSplitAProgramsOwnModel) {
  const RunWith mine{.program = MINE_PROGRAM};
  ASSERT_EQ(train("stands", "plain", {}, mine).code, 0);
  const std::vector<std::string> mesh = {"--mesh", "tensor=2", "--split-layers"};
  std::vector<std::string> rules = mesh;
  rules.emplace_back("in columns,out rows");
  const Finished split = train("stands", "split", rules, mine);
  ASSERT_EQ(split.code, 0) << split.err;
  expect_losses_of("plain", "split");
  EXPECT_THAT(read_file(folder_ / "runs/split/recipe.toml"),
              HasSubstr(R"(split_layers = ["in columns", "out rows"])"));
  rules.back() = "in columns";
  EXPECT_THAT(refusal_of({"train", "stands.toml", "--mesh", "tensor=2", "--split-layers",
                          "in columns,ot rows"},
                         mine),
              AllOf(HasSubstr("no layer is named 'ot'; did you mean 'out'?"), HasSubstr("'in'")));
  EXPECT_THAT(refusal_of({"train", "stands.toml", "--mesh", "tensor=2"}, mine),
              AllOf(HasSubstr("needs a split of the model 'stands', which has none"),
                    HasSubstr("'split_layers' of [mesh]")));
}

TEST_F(TrainSplitLayers, KeysThatTheSplitDoesNotHaveAreRefused) {
  const auto refusal = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "two_linears.toml"});
    return refusal_of(more);
  };
  EXPECT_THAT(refusal({"--split-layers", "net1 columns,net2 rows"}),
              HasSubstr("'split_layers' in [mesh] has no effect without 'tensor' above 1"));
  EXPECT_THAT(refusal({"--mesh", "tensor=2", "--split-layers", "net1 colums"}),
              AllOf(HasSubstr("in 'split_layers' of [mesh] (--split-layers)"),
                    HasSubstr("did you mean 'columns'")));
  EXPECT_THAT(refusal({"--mesh", "tensor=2", "--sequence-parallel", "true"}),
              HasSubstr("'sequence_parallel' in [mesh] divides the tokens of transformers, and the "
                        "model is 'two_linears'"));
  EXPECT_THAT(refusal({"--mesh", "tensor=2", "--checkpoint", "net1", "--split-recomputed", "true"}),
              HasSubstr("'split_recomputed' in [pipeline] divides the inputs of a transformer's"));
  EXPECT_THAT(refusal({"--mesh", "tensor=9"}), HasSubstr("9"));
  EXPECT_THAT(refusal_of({"train",          "two_linears.toml",
                          "--model",        "llama",
                          "--data.name",    "tokens",
                          "--tokens",       "none",
                          "--count",        "0",
                          "--loss",         "token_cross_entropy",
                          "--heads",        "2",
                          "--layers",       "1",
                          "--mesh",         "tensor=2",
                          "--split-layers", "a rows"}),
              HasSubstr("'split_layers' in [mesh] is not for transformers"));
}

// A dry run counts the messages of a run.
TEST_F(TrainSplitLayers, DryRunsCountTheMessagesOfTheRun) {
  const Finished dry = run({"train", "toy.toml", "--mesh", "tensor=2", "--dry-run", "--json"});
  ASSERT_EQ(dry.code, 0) << dry.err;
  const Finished ran = run({"train", "toy.toml", "--mesh", "tensor=2", "--predict", "true",
                            "--max-steps", "1", "--name", "ran", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto field = [](const Finished& done, const char* name) {
    for (const std::string& line : split(done.out, '\n'))
      if (!line.empty())
        if (const auto event = nlohmann::json::parse(line); event.contains(name))
          return event.at(name);
    return nlohmann::json();
  };
  for (const char* name : {"parameters", "tensor_messages", "tensor_bytes_sent"}) {
    EXPECT_FALSE(field(ran, name).is_null()) << name;
    EXPECT_EQ(field(dry, name), field(ran, name)) << name;
  }
}

TEST_F(TrainSplitLayers, ViewDrawsThePlan) {
  const Finished drawn =
      run({"view", "small.toml", "--split", "--mesh", "tensor=2", "--out", "split.svg"});
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_THAT(
      drawn.out,
      AllOf(HasSubstr("unet over 2 tensor ranks"), HasSubstr("conv1 · Conv2d, columns"),
            HasSubstr("conv2 · Conv2d, rows"), HasSubstr("ConvTranspose2d, columns, gathered"),
            HasSubstr("all-gather of"), HasSubstr("per pixel: the sum")));
  EXPECT_THAT(read_file(folder_ / "split.svg"), HasSubstr("<svg"));
  const Finished alone = run({"view", "small.toml", "--split", "--mesh", "tensor=1"});
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_THAT(alone.out, AllOf(HasSubstr("unet on 1 tensor rank"), Not(HasSubstr("all-"))));
  const Finished mine = run({"view", "stands.toml", "--split", "--mesh", "tensor=2",
                             "--split-layers", "in columns,out rows"},
                            {.program = MINE_PROGRAM});
  ASSERT_EQ(mine.code, 0) << mine.err;
  EXPECT_THAT(mine.out, AllOf(HasSubstr("in · Linear, columns"), HasSubstr("0..3")));
}

}  // namespace
}  // namespace trestle
