// `trestle view RECIPE --split`.
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

class ViewSplit : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    const std::string model = R"([model]
name = "llama"
width = 32
[transformer]
layers = 3
heads = 8
kv_heads = 2
mlp = 67
vocabulary = 50257
context = 16
[data]
name = "tokens"
tokens = "missing"
)";
    write_file(folder_ / "whole.toml", model);
    write_file(folder_ / "split.toml", model + "[mesh]\ntensor = 4\nsequence_parallel = true\n");
  }
  static Finished view(const std::vector<std::string>& more) {
    std::vector<std::string> words = {"view", "whole.toml", "--split"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  static std::string refusal_of(const std::vector<std::string>& words) {
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, 2) << finished.out;
    EXPECT_EQ(finished.out, "") << "the error comes before any output";
    return finished.err;
  }
};

TEST_F(ViewSplit, DrawsTheRanksOfTheFlag) {
  const Finished drawn = view({"--mesh", "tensor=4", "--out", "split.svg"});
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_THAT(drawn.out, AllOf(HasSubstr("llama over 4 tensor ranks"), HasSubstr("0..12564"),
                               HasSubstr("head 1: ranks 2, 3"), HasSubstr("wrote split.svg")));
  const std::string svg = read_file(folder_ / "split.svg");
  EXPECT_THAT(svg, AllOf(HasSubstr("<svg"), HasSubstr("37693..50256"),
                         HasSubstr("all-gather of 16 numbers per token: all keys and values")));
  for (const std::string& line : split(drawn.out, '\n')) EXPECT_LE(line.size(), 100u) << line;
}

TEST_F(ViewSplit, DrawsTheRanksOfTheRecipe) {
  const Finished drawn = run({"view", "split.toml", "--split", "--out", "split.txt"});
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_THAT(drawn.out, HasSubstr("reduce-scatter of 32 numbers per token"));
  EXPECT_THAT(read_file(folder_ / "split.txt"), HasSubstr("sequence_parallel"));
  // --mesh lays out all dimensions, so the recipe's sequence_parallel ends with one rank.
  const Finished one = run({"view", "split.toml", "--split", "--mesh", "tensor=1"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, AllOf(HasSubstr("llama on 1 tensor rank"), Not(HasSubstr("forward"))));
}

TEST_F(ViewSplit, DrawsOtherSizesAndRunFolders) {
  const Finished wide = view({"--mesh", "tensor=2", "--mlp", "100", "--vocabulary", "50"});
  ASSERT_EQ(wide.code, 0) << wide.err;
  EXPECT_THAT(wide.out, AllOf(HasSubstr("MLP 100"), HasSubstr("25..49")));
  fs::create_directories(folder_ / "runs/split");
  fs::copy_file(folder_ / "split.toml", folder_ / "runs/split/recipe.toml");
  const Finished of_run = run({"view", "runs/split", "--split"});
  ASSERT_EQ(of_run.code, 0) << of_run.err;
  EXPECT_THAT(of_run.out, HasSubstr("llama over 4 tensor ranks"));
}

TEST_F(ViewSplit, PrintsJson) {
  const Finished printed = view({"--mesh", "tensor=2", "--json"});
  ASSERT_EQ(printed.code, 0) << printed.err;
  const auto json = nlohmann::json::parse(printed.out);
  EXPECT_EQ(json.at("ranks"), 2);
  const auto& embed = json.at("sections")[0].at("steps")[0];
  const auto& tokens = embed.at("tensors")[0];
  EXPECT_EQ(tokens.at("shape"), nlohmann::json({50257, 32}));
  EXPECT_EQ(tokens.at("ranks")[1].at("ranges"), nlohmann::json({{25129, 50257}}));
  EXPECT_EQ(tokens.at("ranks")[1].at("bytes"), 25128 * 32 * 4);
  EXPECT_EQ(embed.at("after")[0].at("collective"), "all-reduce");
}

TEST_F(ViewSplit, RefusesWhatCannotBeDrawn) {
  EXPECT_THAT(
      refusal_of({"view", "whole.toml", "--split"}),
      AllOf(HasSubstr("the mesh of whole.toml has no tensor ranks"), HasSubstr("--mesh tensor=4")));
  EXPECT_THAT(refusal_of({"view", "whole.toml", "--split", "--mesh", "replicate=2"}),
              HasSubstr("has no tensor ranks"));
  EXPECT_THAT(refusal_of({"view", "whole.toml", "--split", "--mesh", "tensor=3"}),
              AllOf(HasSubstr("heads = 8, kv_heads = 2"),
                    HasSubstr("cannot be split over 3 tensor ranks, but over 1, 2, 4, 8")));
  EXPECT_THAT(refusal_of({"view", "whole.toml", "--split", "--mesh", "tensors=2"}),
              HasSubstr("did you mean 'tensor'?"));
  EXPECT_THAT(refusal_of({"view", "whole.toml", "--split", "--mesh", "tensor=1",
                          "--sequence-parallel", "true"}),
              HasSubstr("'sequence_parallel' in [mesh] has no effect without 'tensor' above 1"));
  EXPECT_THAT(refusal_of({"view", "small.toml", "--split", "--mesh", "tensor=50"}),
              HasSubstr("cannot be split over 50 tensor ranks by this plan"));
  EXPECT_THAT(refusal_of({"view", "none.toml", "--split", "--mesh", "tensor=2"}),
              HasSubstr("none.toml"));
}

TEST_F(ViewSplit, RefusesFlagsWithoutEffect) {
  EXPECT_THAT(refusal_of({"view", "--schedule", "gpipe", "--mesh", "tensor=2"}),
              HasSubstr("--mesh has no effect without --split"));
  EXPECT_THAT(refusal_of({"view", "--schedule", "gpipe", "--kv-heads", "2"}),
              HasSubstr("--kv-heads has no effect without --split"));
  EXPECT_THAT(refusal_of({"view", "--schedule", "gpipe", "--split"}),
              HasSubstr("--split needs a recipe"));
  EXPECT_THAT(refusal_of({"view", "split.toml", "--split", "--stages", "2"}),
              HasSubstr("--stages has no effect with --split"));
  EXPECT_THAT(refusal_of({"view", "split.toml", "--split", "--out", "split.json"}),
              HasSubstr("ends in .svg or .txt"));
  write_file(folder_ / "there.svg", "mine");
  EXPECT_THAT(refusal_of({"view", "split.toml", "--split", "--out", "there.svg"}),
              HasSubstr("there.svg"));
}

}  // namespace
}  // namespace trestle
