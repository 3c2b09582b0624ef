// `trestle plan` as a user types it. tests/plan/search_test.cpp has the search itself.
#include <gmock/gmock.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PlanVerb : public ProgramTest {
 protected:
  // The installed profile is not there: the source's.
  static std::vector<std::string> words(const std::string& gpt,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> all = {
        "plan", "--gpt", gpt, "--machine",
        std::string(TRESTLE_SOURCE_DIR) + "/machines/a100-8-per-node.toml"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

const std::string billions_39 = "layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200";

TEST_F(PlanVerb, PinnedDegreesGiveOnePredictedTime) {
  const Finished done =
      run(words(billions_39, {"--devices", "512", "--batch", "1536", "--keep",
                              "tensor=8,pipeline=2,micro_batch=4,recompute=all", "--json"}));
  ASSERT_EQ(done.code, 0) << done.err;
  const auto json = nlohmann::json::parse(done.out);
  EXPECT_NEAR(json["predicted_step_seconds"].get<double>(), 14.45, 0.12 * 14.45);
  EXPECT_EQ(json["strategy"]["data"], 32);
}

TEST_F(PlanVerb, PrintsATableAndReasons) {
  const Finished done = run(words(billions_39, {"--devices", "64", "--batch", "64", "--top", "2"}));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("GPT of 39.1 billion parameters"), HasSubstr("2 lost: "),
                              HasSubstr("does not fit: "), HasSubstr("not legal: ")));
}

TEST_F(PlanVerb, NothingFitsNamesTheLeast) {
  const Finished done =
      run(words(billions_39, {"--devices", "2", "--batch", "64", "--keep", "offload=no"}));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("None of "), HasSubstr("least memory: "),
                              HasSubstr("least devices: ")));
}

TEST_F(PlanVerb, ExplainsAndDrawsAPlan) {
  const std::vector<std::string> degrees = {
      "--devices",           "16",        "--batch", "32",    "--keep",
      "tensor=8,pipeline=2", "--explain", "2",       "--svg", "plan.svg"};
  const Finished done = run(words(billions_39, degrees));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out,
              AllOf(HasSubstr("\n2  tensor 8 · pipeline 2"), HasSubstr("\nstage 1 · "),
                    HasSubstr("times forward"), HasSubstr("rank 1"), HasSubstr("wrote plan.svg")));
  EXPECT_THAT(read_file(folder_ / "plan.svg"), HasSubstr("<svg"));
  EXPECT_EQ(run(words(billions_39, degrees)).code, 2);  // no --overwrite
  EXPECT_THAT(
      run(words(billions_39, {"--devices", "16", "--batch", "32", "--top", "1", "--explain", "2"}))
          .err,
      HasSubstr("there is no plan 2, only 1 plan"));
}

TEST_F(PlanVerb, WritesAPage) {
  const std::vector<std::string> page = {"--devices", "16",     "--batch",
                                         "32",        "--html", "plans.html"};
  const Finished done = run(words(billions_39, page));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("wrote plans.html"));
  EXPECT_THAT(read_file(folder_ / "plans.html"),
              AllOf(HasSubstr("<title>Plans of GPT of 39.1 billion"), HasSubstr("id=\"map\"")));
  EXPECT_EQ(run(words(billions_39, page)).code, 2);  // no --overwrite
  EXPECT_THAT(
      run(words(billions_39, {"--devices", "16", "--batch", "32", "--html", "plans.txt"})).err,
      HasSubstr("--html plans.txt: the file's name must end in .html"));
}

// A recipe's ranks on several nodes: the link is its own, or that of a machine file.
TEST_F(PlanVerb, RecipesOnSeveralNodes) {
  const std::string recipe = TRESTLE_SOURCE_DIR "/recipes/unet_quick.toml";
  const auto refusal = [](const std::vector<std::string>& more) {
    const Finished done = run(more);
    EXPECT_EQ(done.code, 2) << done.out;
    return done.err;
  };
  EXPECT_THAT(refusal({"plan", recipe, "--devices", "4", "--nodes", "2"}),
              AllOf(HasSubstr("--nodes needs the link between the nodes"), HasSubstr("25Gbit")));
  write_file(folder_ / "hosts.toml", read_file(recipe) + "\n[mesh]\nlink = \"1Gbit,100us\"\n");
  EXPECT_THAT(refusal({"plan", "hosts.toml", "--devices", "4", "--nodes", "3"}),
              AllOf(HasSubstr("3 nodes do not divide 4 devices"), HasSubstr("2 and 4 nodes")));
  EXPECT_THAT(refusal({"plan", "hosts.toml", "--devices", "4", "--nodes", "2", "--verify", "1"}),
              AllOf(HasSubstr("it runs plans on this machine"), HasSubstr("--launcher")));
  const Finished done =
      run({"plan", "hosts.toml", "--devices", "2", "--nodes", "2", "--json", "--out", "out.toml"});
  ASSERT_EQ(done.code, 0) << done.err;
  const auto sent = nlohmann::json::parse(done.out)["plans"][0]["sent_bytes"];
  EXPECT_GT(
      sent["between_nodes"]["pipeline"].get<double>() + sent["between_nodes"]["data"].get<double>(),
      0);
  EXPECT_EQ(sent["inside_node"]["data"], 0);
  EXPECT_THAT(read_file(folder_ / "out.toml"), HasSubstr("ranks_per_host = 1"));
  EXPECT_THAT(
      run({"plan", "hosts.toml", "--devices", "2", "--nodes", "2", "--out", "two.toml"}).out,
      HasSubstr("run it on each node: trestle launch -n 1 --nodes 2 --node-rank K "
                "--rendezvous NODE0 -- trestle train two.toml\n"));
}

// The recipe's [plan] gives what the command line leaves open.
TEST_F(PlanVerb, TakesTheRecipesPlanSection) {
  const std::string recipe = read_file(TRESTLE_SOURCE_DIR "/recipes/two_linears.toml");
  write_file(folder_ / "own.toml",
             recipe + "\n[plan]\ndevice_count = 2\ngoal = \"memory\"\nkeep = [\"data=2\"]\n");
  const auto planned = [](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"plan", "own.toml", "--json"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished done = run(all);
    EXPECT_EQ(done.code, 0) << done.err;
    return nlohmann::json::parse(done.out);
  };
  EXPECT_EQ(planned({})["plans"][0]["strategy"]["data"], 2);
  EXPECT_EQ(planned({"--keep", "pipeline=2"})["plans"][0]["strategy"]["pipeline"], 2);
  write_file(folder_ / "zero.toml", recipe + "\n[plan]\nmemory = \"0\"\n");
  EXPECT_THAT(run({"plan", "zero.toml", "--devices", "2"}).err,
              HasSubstr("a device needs at least one byte"));
  EXPECT_THAT(run(words(billions_39, {"--devices", "8", "--batch", "8", "--memory", "0B"})).err,
              HasSubstr("--memory 0B: a device needs at least one byte"));
}

// A plan that does not exist is not written, run or drawn.
TEST_F(PlanVerb, WithoutAPlanNothingIsWrittenOrRun) {
  const std::string recipe = TRESTLE_SOURCE_DIR "/recipes/two_linears.toml";
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--out", "out.toml"}, {"--verify", "1"}, {"--svg", "out.svg"}}) {
    std::vector<std::string> all = {"plan", recipe, "--devices", "2", "--memory", "100B", "--json"};
    all.insert(all.end(), flags.begin(), flags.end());
    const Finished done = run(all);
    EXPECT_EQ(done.code, 2);
    EXPECT_NE((done.out + done.err).find("no strategy fits"), std::string::npos);
    EXPECT_EQ(done.out.find("\"plans\""), std::string::npos);
  }
  EXPECT_THAT(run({"plan", recipe, "--ranks", "threads"}).err,
              HasSubstr("--ranks has no effect without --verify"));
}

// Batch norms of one value have no statistics: such micro-batches are no plan, and others are.
TEST_F(PlanVerb, MicroBatchesThatANetRefusesAreNotLegal) {
  const Finished done = run({"plan", TRESTLE_SOURCE_DIR "/recipes/resnet18_mnist.toml", "--devices",
                             "2", "--keep", "data=2,level=0,recompute=none", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  const auto json = nlohmann::json::parse(done.out);
  EXPECT_GT(json["plans"][0]["strategy"]["micro_batch"], 1);
}

TEST_F(PlanVerb, OnlyTransformersRecomputeTheirAttentions) {
  const Finished done = run({"plan", TRESTLE_SOURCE_DIR "/recipes/two_linears.toml", "--devices",
                             "2", "--keep", "recompute=selective"});
  EXPECT_THAT(done.out + done.err, HasSubstr("only a transformer has attentions to recompute"));
}

TEST_F(PlanVerb, RefusesWhatCannotBe) {
  const auto refusal = [](const std::vector<std::string>& more) {
    const Finished done = run(words(billions_39, more));
    EXPECT_EQ(done.code, 2) << join(more, " ");
    return done.err;
  };
  EXPECT_THAT(refusal({"--devices", "512", "--batch", "1536", "--keep", "tensor=8,pipeline=3"}),
              AllOf(HasSubstr("do not divide 512 devices"), HasSubstr("384 and 576 devices")));
  EXPECT_THAT(refusal({"--devices", "0", "--batch", "8"}), HasSubstr("--devices"));
  EXPECT_THAT(refusal({"--devices", "8", "--batch", "8", "--memory", "lots"}), HasSubstr("lots"));
  EXPECT_THAT(refusal({"--devices", "8", "--batch", "8", "--goal", "money"}),
              HasSubstr("has no price"));
  EXPECT_THAT(run({"plan", "--gpt", "layers=4", "--devices", "8", "--batch", "8"}).err,
              HasSubstr("no hidden"));
  write_file(folder_ / "bad.toml", "[machine]\nname = 3\n");
  EXPECT_THAT(
      run({"plan", "--gpt", billions_39, "--machine", "bad.toml", "--devices", "8", "--batch", "8"})
          .err,
      HasSubstr("bad.toml:2: 'name' in [machine] must be a text"));
}

std::string tiny_recipe(const std::string& model, int shape) {
  return text("[model]\nname = \"", model,
              "\"\nwidth = 8\nclasses = 4\nchannels = 12\n[data]\nname = \"random\"\n",
              "targets = \"normal\"\ncount = 24\nshape = [", shape, "]\n[train]\nbatch = 12\n",
              "epochs = 1\nloss = \"mean_squared_error\"\npredict = false\n",
              "[devices]\nuse = \"virtual:2x64MiB\"\nthreads = 1\n");
}

// The best plan of each family of strategies is a recipe that trains.
TEST_F(PlanVerb, PlansARecipeAndWritesOneThatRuns) {
  write_file(folder_ / "tiny.toml", tiny_recipe("toy", 12));
  for (const std::string keep : {"data=2", "pipeline=2", "tensor=2"}) {
    const Finished done =
        run({"plan", "tiny.toml", "--keep", keep, "--out", "best.toml", "--overwrite", "--json"});
    ASSERT_EQ(done.code, 0) << done.err;
    const auto json = nlohmann::json::parse(done.out);
    EXPECT_TRUE(json["fits"]);
    EXPECT_EQ(json["devices"], 2);
    EXPECT_EQ(json["batch"], 12);
    const bool over_ranks = keep != "pipeline=2";
    std::vector<std::string> train = {"train", "best.toml", "--quiet"};
    if (over_ranks) train.insert(train.end(), {"--ranks", "threads:2"});
    const Finished ran = run(train);
    EXPECT_EQ(ran.code, 0) << keep << ": " << ran.err;
  }
}

TEST_F(PlanVerb, RefusesABrokenFileOfResiduals) {
  write_file(folder_ / "tiny.toml", two_linears_recipe);
  write_file(folder_ / "steps.jsonl", "no JSON\n");
  const Finished done = run({"plan", "tiny.toml", "--residuals", "steps.jsonl"});
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.err, AllOf(HasSubstr("steps.jsonl:1"), HasSubstr("not a measured step")));
}

TEST_F(PlanVerb, PrintsThePlansOfARecipe) {
  write_file(folder_ / "tiny.toml", tiny_recipe("mlp", 12));
  const Finished done = run({"plan", "tiny.toml", "--devices", "4", "--explain", "1"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("mlp · 4 devices of virtual devices · batch 12"),
                              HasSubstr("samples/s"), HasSubstr("2 lost: "),
                              HasSubstr("layers that were measured on this machine")));
  const Finished small = run({"plan", "tiny.toml", "--memory", "1KiB"});
  ASSERT_EQ(small.code, 0) << small.err;
  EXPECT_THAT(small.out, AllOf(HasSubstr("None of "), HasSubstr("least memory: ")));
}

// The last batch of an epoch has 3 examples, fewer than 4 data ranks.
TEST_F(PlanVerb, LastBatchesOfFewExamplesLimitTheDataRanks) {
  std::string recipe = tiny_recipe("toy", 12);
  const auto count = recipe.find("count = ");
  ASSERT_NE(count, std::string::npos);
  recipe.replace(count, recipe.find('\n', count) - count, "count = 27\nvalidation = 0");
  recipe.insert(recipe.find("[train]") + 8, "drop_last = false\n");
  write_file(folder_ / "odd.toml", recipe);
  const Finished refused = run({"plan", "odd.toml", "--devices", "4", "--keep", "data=4"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the last batch of an epoch has 3 examples"));
  const Finished done = run({"plan", "odd.toml", "--devices", "4", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  for (const auto& plan : nlohmann::json::parse(done.out)["plans"])
    EXPECT_LT(plan["strategy"]["data"].get<int>(), 4) << plan["strategy"];
}

// A small GPT of letters.
class PlanOfGpt : public PlanVerb {
 protected:
  static void SetUpTestSuite() {
    PlanVerb::SetUpTestSuite();
    std::string sea;
    for (int i = 0; i < 400; ++i) sea += "the sea is wide and deep. ";
    write_file(folder_ / "sea.txt", sea);
    ASSERT_EQ(run({"text", "prepare", "sea.txt", "--tokenizer", "characters", "--out", "sea"}).code,
              0);
  }
  static std::string recipe(const std::string& train, const std::string& rest) {
    return text(R"([model]
name = "gpt2"
width = 32
[transformer]
layers = 2
heads = 4
context = 32
[data]
name = "tokens"
tokens = "sea"
order = "random"
count = 27
validation_windows = 8
[optimizer]
name = "adamw"
[train]
batch = 12
)",
                train, rest);
  }
};

// Strategies with data ranks that are not legal share their layers with legal ones.
TEST_F(PlanOfGpt, LegalStrategiesKeepTheirLayersBesideOnesThatAreNotLegal) {
  write_file(folder_ / "odd.toml", recipe("drop_last = false\n", ""));
  const Finished done = run({"plan", "odd.toml", "--devices", "4", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_FALSE(nlohmann::json::parse(done.out)["plans"].empty());
}

// The plan replaces how a recipe recomputes.
TEST_F(PlanOfGpt, RecomputationOfTheRecipeIsThePlans) {
  write_file(folder_ / "segments.toml",
             recipe("", "[pipeline]\nrecompute = \"always\"\ncheckpoint_segments = 2\n"));
  const Finished segments = run({"plan", "segments.toml", "--devices", "1", "--out", "best.toml"});
  EXPECT_EQ(segments.code, 0) << segments.err;
  EXPECT_EQ(run({"train", "best.toml", "--dry-run"}).code, 0);
  write_file(folder_ / "split.toml",
             recipe("",
                    "[mesh]\ntensor = 2\n[pipeline]\nrecompute = \"always\"\n"
                    "checkpoint = [\"blocks\"]\nsplit_recomputed = true\n"));
  const Finished split = run({"plan", "split.toml", "--devices", "2"});
  EXPECT_EQ(split.code, 0) << split.err;
  EXPECT_THAT(
      run({"plan", "split.toml", "--devices", "2", "--keep", "tensor=2,sequence_parallel=yes"}).err,
      HasSubstr("plans of this model do not split the tokens"));
}

TEST_F(PlanVerb, TakesTheNameOfARecipe) {
  std::filesystem::create_directory(folder_ / "recipes");
  write_file(folder_ / "recipes" / "tiny.toml", tiny_recipe("mlp", 12));
  EXPECT_EQ(run({"plan", "tiny", "--devices", "2"}).code, 0);
  EXPECT_EQ(run({"choose", "tiny", "--devices", "2", "--batch", "12"}).code, 0);
}

TEST_F(PlanVerb, WritesNothingWhereNothingIsAsked) {
  write_file(folder_ / "tiny.toml", tiny_recipe("mlp", 12));
  EXPECT_THAT(run({"plan", "tiny.toml", "--out", "one.svg", "--svg", "one.svg"}).err,
              HasSubstr("--out and --svg name one file, one.svg"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "one.svg"));
}

TEST_F(PlanVerb, RefusesRecipesThatCannotBePlanned) {
  write_file(folder_ / "tiny.toml", tiny_recipe("two_linears", 12));
  const auto refusal = [&](const std::vector<std::string>& words) {
    const Finished refused = run(words);
    EXPECT_EQ(refused.code, 2) << refused.out;
    return refused.err;
  };
  EXPECT_THAT(refusal({"plan"}),
              HasSubstr("plan needs a model: a recipe, or a model by its sizes"));
  EXPECT_THAT(refusal({"plan", "tiny.toml", "--gpt", billions_39}),
              HasSubstr("a recipe or --gpt, not both"));
  EXPECT_THAT(refusal({"plan", "tiny.toml", "--machine",
                       std::string(TRESTLE_SOURCE_DIR) + "/machines/a100-8-per-node.toml"}),
              AllOf(HasSubstr("a100-8-per-node.toml: has no 'adam' in [optimizer]"),
                    HasSubstr("trestle calibrate")));
  EXPECT_THAT(refusal({"plan", "--gpt", billions_39, "--batch", "8"}),
              HasSubstr("--gpt needs --devices"));
  EXPECT_THAT(refusal({"plan", "none.toml"}), HasSubstr("none.toml"));
  EXPECT_THAT(refusal({"plan", "tiny.toml", "--devices", "13"}),
              AllOf(HasSubstr("no strategy is legal for 13 devices and a batch of 12"),
                    HasSubstr("Nearest that have one: 12 and 18 devices")));
}

}  // namespace
}  // namespace trestle
