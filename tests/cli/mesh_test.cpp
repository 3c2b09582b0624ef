// `trestle train` on ranks that share each batch: replicas, sharded state, DeepSpeed's file.
#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainMesh : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    fs::create_directories(folder_ / "recipes");
    write_file(folder_ / "recipes/tiny.toml", two_linears_recipe);
    write_file(folder_ / "ds.json", R"({
  "train_batch_size": 20,
  "zero_optimization": { "stage": 2, "reduce_scatter": true, "reduce_bucket_size": 5e8 },
  "optimizer": { "type": "AdamW", "params": { "lr": 0.01 } },
  "scheduler": { "type": "WarmupLR", "params": { "warmup_max_lr": 0.01, "warmup_num_steps": 4 } },
  "gradient_clipping": 1.0
})");
  }
  static Finished train(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train", "tiny", "--name", name};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  static void expect_same_losses(const std::string& expected, const std::string& actual) {
    const auto a = numbers(expected, "loss"), b = numbers(actual, "loss");
    ASSERT_EQ(a.size(), b.size());
    EXPECT_FALSE(a.empty());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5) << actual;
  }
};

TEST_F(TrainMesh, ReplicatesRecipeByName) {
  ASSERT_EQ(train("one", {"--devices", "cpu", "--quiet"}).code, 0);
  const Finished four = train("four", {"--mesh", "replicate=4", "--ranks", "4"});
  ASSERT_EQ(four.code, 0) << four.err;
  EXPECT_THAT(four.out, HasSubstr("virtual:4: one for each rank (the recipe has virtual:2)"));
  EXPECT_THAT(four.out, HasSubstr("mesh pipeline=1,replicate=4"));
  expect_same_losses("one", "four");
  const Finished few =
      train("few", {"--mesh", "replicate=4", "--ranks", "threads:4", "--devices", "virtual:2"});
  EXPECT_EQ(few.code, 2);
  EXPECT_THAT(few.err, AllOf(HasSubstr("2 devices are given for 4 ranks"),
                             HasSubstr("--devices virtual:4")));
}

TEST_F(TrainMesh, ShardsAtEachLevelAndResumesOnOtherMesh) {
  ASSERT_EQ(train("plain", {"--devices", "cpu", "--quiet", "--epochs", "3"}).code, 0);
  const std::vector<std::vector<std::string>> ways = {
      {"--mesh", "replicate=2,shard=2", "--ranks", "threads:4"},  // parameters
      {"--mesh", "shard=2", "--shard-level", "optimizer_state"},
      {"--mesh", "pipeline=2,shard=2", "--shard-level", "gradients", "--ranks", "threads:4"}};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const std::string name = text("way_", i);
    const Finished divided = train(name, ways[i]);
    ASSERT_EQ(divided.code, 0) << divided.err;
    EXPECT_THAT(divided.out, HasSubstr(" · shard level "));
    std::vector<std::string> words = {"train",   "--resume",  "runs/" + name, "--epochs", "3",
                                      "--quiet", "--devices", "cpu",          "--mesh"};
    if (i == 0)
      words.insert(words.end(), {"shard=2", "--shard-level", "gradients"});
    else
      words.push_back("replicate=1");
    const Finished rest = run(words);
    ASSERT_EQ(rest.code, 0) << rest.err;
    expect_same_losses("plain", name);
  }
}

// Like most recipes, this one has a cut for its own two devices.
TEST_F(TrainMesh, RankOwnsAllStagesOfRecipesCut) {
  const std::vector<std::string> cut = {"--balance", "2,1", "--epochs", "5"};
  ASSERT_EQ(train("cut", cut).code, 0);
  for (const std::string ranks : {"2", "threads:2"}) {
    std::vector<std::string> words = cut;
    words.insert(words.end(), {"--mesh", "shard=2", "--ranks", ranks});
    const Finished both = train("cut_" + ranks, words);
    ASSERT_EQ(both.code, 0) << both.err;
    EXPECT_THAT(both.out, HasSubstr("stage 1   virtual:0"));
    expect_same_losses("cut", "cut_" + ranks);
  }
}

TEST_F(TrainMesh, DryRunListsStagesOfEachRank) {
  const Finished plan = train("paper", {"--mesh", "pipeline=2,shard=2", "--dry-run"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("shard level parameters"), HasSubstr("stage 0   virtual:0"),
                              HasSubstr("stage 1   virtual:2"),
                              HasSubstr("excluding data-parallel communication")));
  const Finished level = train("paper", {"--shard-level", "gradients"});
  EXPECT_EQ(level.code, 2);
  EXPECT_THAT(level.err, HasSubstr("--mesh shard=2"));
  const Finished few = train("paper", {"--mesh", "shard=64", "--dry-run"});
  EXPECT_EQ(few.code, 2);
  EXPECT_THAT(few.err, HasSubstr("a batch of 20 has fewer examples than [mesh] has replicas, 64"));
  for (const std::string more : {"--dry-run", "--quiet"}) {  // 50 = 24 + 24 + 2
    const Finished last =
        train("paper", {"--mesh", "replicate=3", "--batch", "24", "--drop-last", "false", more});
    EXPECT_EQ(last.code, 2) << last.out;
    EXPECT_THAT(last.err, AllOf(HasSubstr("the last batch of an epoch has 2 examples"),
                                HasSubstr("--drop-last true")));
  }
}

TEST_F(TrainMesh, MeshFlagReplacesWholeLayout) {
  ASSERT_EQ(train("laid_out", {"--mesh", "replicate=2,shard=2", "--ranks", "threads:4"}).code, 0);
  const auto saved = "runs/laid_out/recipe.toml";
  const Finished other =
      run({"train", saved, "--mesh", "pipeline=2", "--devices", "virtual:2", "--dry-run"});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.out, Not(HasSubstr("mesh ")));
  // An option that was not given does not count; messages quote the level that was given.
  for (const std::string ranks : {"4", "threads:3", "1"}) {
    const Finished more = train("more", {"--mesh", "replicate=2", "--ranks", ranks});
    EXPECT_EQ(more.code, 2) << more.out;
    EXPECT_THAT(more.err, HasSubstr("--mesh replicate=2 lays out 2 ranks, but there "));
  }
  const Finished level = train("level", {"--mesh", "replicate=2", "--shard-level", "gradients"});
  EXPECT_EQ(level.code, 2) << level.out;
  EXPECT_THAT(level.err, HasSubstr("--shard-level gradients needs ranks to shard over"));
  for (const std::string flag : {"--shard", "--replicate", "--pipeline"}) {
    const Finished twice = train("twice", {"--mesh", "shard=2", flag, "4", "--dry-run"});
    EXPECT_EQ(twice.code, 2) << twice.out;
    EXPECT_THAT(twice.err, AllOf(HasSubstr("--mesh shard=2 lays out all ranks, but " + flag),
                                 HasSubstr("or leave --mesh out")));
  }
}

// Resuming on another layout does not need the old run's devices.
TEST_F(TrainMesh, ResumesWithDevicesForNewLayout) {
  ASSERT_EQ(train("four_devices", {"--mesh", "pipeline=2,shard=2", "--ranks", "threads:4",
                                   "--balance", "2,1", "--max-steps", "1"})
                .code,
            0);
  const std::vector<std::vector<std::string>> layouts = {
      {"pipeline=2", "2", "virtual:2: one for each rank (the recipe has virtual:4)"},
      {"replicate=3", "threads:3", "virtual:3: one for each rank (the recipe has virtual:2)"},
      {"replicate=1", "1", "virtual:2: one for each stage (the recipe has virtual:3)"}};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const Finished on = run({"train", "--resume", "runs/four_devices", "--mesh", layouts[i][0],
                             "--ranks", layouts[i][1], "--max-steps", std::to_string(i + 2)});
    EXPECT_EQ(on.code, 0) << on.err;
    EXPECT_THAT(on.out, HasSubstr(layouts[i][2]));
  }
}

TEST_F(TrainMesh, AcceptsDeepspeedFile) {
  const Finished survey =
      train("survey", {"--deepspeed", TRESTLE_SOURCE_DIR "/examples/deepspeed_zero2.json",
                       "--ranks", "4", "--count", "200", "--dry-run"});
  ASSERT_EQ(survey.code, 0) << survey.err;
  EXPECT_THAT(
      survey.out,
      AllOf(HasSubstr("64 per step = 16 per micro-batch x 1 accumulated x 4 ranks"),
            HasSubstr("adam, from the recipe"), HasSubstr("without effect in this run:"),
            HasSubstr("mesh replicate=1,shard=4 · shard level gradients"), HasSubstr("fp16")));
  EXPECT_FALSE(fs::exists(folder_ / "runs/survey"));

  const Finished one = train("ds_one", {"--deepspeed", "ds.json", "--devices", "cpu"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr("there is only one rank, so nothing is sharded"));
  const Finished two = train("ds_two", {"--deepspeed", "ds.json", "--ranks", "2"});
  ASSERT_EQ(two.code, 0) << two.err;
  expect_same_losses("ds_one", "ds_two");
  // DeepSpeed's warm-up keeps the lowest rate for two steps. An epoch has two step lines and its
  // own line.
  const auto rates = [] { return numbers("ds_two", "learning_rate"); };
  EXPECT_EQ(rates().at(1), 0);
  EXPECT_GT(rates().at(3), 0);
  const Finished on = run({"train", "--resume", "runs/ds_two", "--epochs", "3", "--mesh",
                           "replicate=2,shard=2", "--ranks", "threads:4", "--quiet"});
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_NEAR(rates().at(6), 0.01, 1e-12);
  // The file's scheduler sets each step's rate.
  const Finished idle =
      run({"train", "--resume", "runs/ds_two", "--epochs", "4", "--lr", "0.5", "--ranks", "4"});
  EXPECT_EQ(idle.code, 2) << idle.out;
  EXPECT_THAT(idle.err, HasSubstr("'learning_rate' in [optimizer] has no effect"));
  // A flag that agrees with the file.
  const Finished agreed = train("agreed", {"--deepspeed", "ds.json", "--ranks", "threads:2",
                                           "--shard-level", "gradients", "--max-steps", "1"});
  EXPECT_EQ(agreed.code, 0) << agreed.err;
}

TEST_F(TrainMesh, SavesDeepspeedsFolderWhereAsked) {
  const Finished saved = train(
      "ds_saved", {"--deepspeed", "ds.json", "--ranks", "2", "--deepspeed-checkpoints", "true"});
  ASSERT_EQ(saved.code, 0) << saved.err;
  const fs::path folder = folder_ / "runs/ds_saved/deepspeed";
  const std::string tag = read_file(folder / "latest");  // two epochs of two steps
  EXPECT_EQ(tag, "global_step4");
  for (const char* const name :
       {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "zero_pp_rank_1_mp_rank_00_optim_states.pt"})
    EXPECT_TRUE(fs::exists(folder / tag / name)) << name;
  // The weights are those of the run's own checkpoint.
  const Finished own = run({"export", "runs/ds_saved/last", "--out", "own.pt"});
  const Finished theirs = run({"export", "runs/ds_saved/deepspeed", "--out", "theirs.pt"});
  ASSERT_EQ(theirs.code, 0) << theirs.err;
  EXPECT_EQ(own.out.substr(0, own.out.find(" of ")), theirs.out.substr(0, theirs.out.find(" of ")));
  EXPECT_EQ(read_file(folder_ / "own.pt"), read_file(folder_ / "theirs.pt"));
  const Finished begun = train("from_ds", {"--weights", "runs/ds_saved/deepspeed"});
  EXPECT_EQ(begun.code, 0) << begun.err;
  EXPECT_THAT(begun.out, HasSubstr("runs/ds_saved/deepspeed: 4 tensors, under its own names"));
  const Finished refused =
      train("ds_fp16", {"--deepspeed-checkpoints", "true", "--precision", "fp16"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("'deepspeed_checkpoints' in [train] does not work with fp16"));
}

// A rank's micro-batch is a slice of its share of the batch.
TEST_F(TrainMesh, BalanceMeasuresShareOfRank) {
  write_file(folder_ / "thirds.toml",
             read_file(folder_ / "recipes/tiny.toml") + "[mesh]\nreplicate = 3\n");
  const Finished measured = run({"balance", "thirds.toml", "--save", "layers.json"});
  ASSERT_EQ(measured.code, 0) << measured.err;
  EXPECT_THAT(measured.out, HasSubstr("7 examples per micro-batch"));
  const Finished again = run({"balance", "thirds.toml", "--profile", "layers.json"});
  EXPECT_EQ(again.code, 0) << again.err;
}

// Each process reads the file, but a pipe can be read only once.
TEST_F(TrainMesh, ReadsDeepspeedFileFromPipeOnThreadRanksOnly) {
  const auto piped = [](const std::string& ranks) {
    return run({"-c", "cat ds.json | '" TRESTLE_PROGRAM
                      "' train tiny --name piped --max-steps 1 --deepspeed /dev/stdin --ranks " +
                          ranks},
               {.program = "/bin/sh"});
  };
  const Finished processes = piped("2");
  EXPECT_EQ(processes.code, 2) << processes.err;
  EXPECT_THAT(processes.err, HasSubstr("/dev/stdin: is a pipe or a device"));
  const Finished threads = piped("threads:2");
  EXPECT_EQ(threads.code, 0) << threads.err;
}

TEST_F(TrainMesh, NamesDeepspeedFileThatIsNotJson) {
  for (const std::string content : {"{\"train_batch_size\": 24,}", ""}) {
    write_file(folder_ / "broken.json", content);
    const Finished refused = train("broken", {"--deepspeed", "broken.json"});
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr("broken.json: not JSON: "));
  }
}

// Libtorch's stack belongs to no message; a rank that has none of the layers prints it too.
TEST_F(TrainMesh, ReportsWrongInputSizesWithoutStack) {
  write_file(
      folder_ / "wide.toml",
      "[model]\nname = \"mlp\"\nclasses = 3\n[data]\nname = \"random\"\nshape = [32]\ncount = 40\n"
      "[train]\nbatch = 10\n[devices]\nuse = \"cpu\"\n");
  const Finished refused = run({"train", "wide.toml", "--mesh", "pipeline=2,shard=2"});
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("shapes cannot be multiplied"),
                                 Not(HasSubstr("frame #")), Not(HasSubstr("Exception raised"))));
}

TEST_F(TrainMesh, NotesStatisticsOfReplicas) {
  const auto of_unet = [](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train", "small.toml", "--name", name,        "--max-steps",
                                      "1",     "--devices",  "cpu",    "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    return done.out;
  };
  EXPECT_THAT(of_unet("noted", {"--mesh", "replicate=2"}),
              HasSubstr("running statistics of the first replica"));
  EXPECT_THAT(of_unet("alone", {}), Not(HasSubstr("batch norm:")));
}

TEST_F(TrainMesh, RefusesFlagsThatContradictDeepspeedFile) {
  const auto refusal = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--deepspeed", "ds.json", "--ranks", "2"};
    words.insert(words.end(), more.begin(), more.end());
    const Finished refused = train("refused", words);
    EXPECT_EQ(refused.code, 2) << join(more, " ");
    return refused.err;
  };
  EXPECT_THAT(refusal({"--batch", "10", "--lr", "0.5"}),
              AllOf(HasSubstr("--batch 10 contradicts ds.json, which sets 20"),
                    HasSubstr("--learning-rate 0.5 contradicts ds.json, which sets 0.01")));
  EXPECT_THAT(refusal({"--mesh", "replicate=2"}),
              HasSubstr("--replicate 2 contradicts ds.json, which sets 1"));
  const Finished three = train("refused", {"--deepspeed", "ds.json", "--ranks", "3"});
  EXPECT_EQ(three.code, 2);
  EXPECT_THAT(three.err, HasSubstr("train_batch_size"));
  write_file(folder_ / "wrong.json",
             R"({"train_batch_size": 20, "zero_optimization": {"stge": 2}})");
  const Finished wrong = train("refused", {"--deepspeed", "wrong.json"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean 'stage'?"));
  EXPECT_EQ(run({"train", "--resume", "runs/one", "--deepspeed", "ds.json"}).code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "runs/refused"));
}

// Rank 1 kills itself in its seventh step unless it was restarted: mine.cpp.
TEST_F(TrainMesh, RestartsKilledRankToSameBits) {
  for (const std::string mesh : {"replicate=2", "shard=2"}) {
    const auto falling = [&](const std::string& name, const std::string& model, int restarts) {
      return run(
          {"train", "tiny", "--name", name, "--model", model, "--mesh", mesh, "--ranks", "2",
           "--max-restarts", text(restarts), "--batch", "10", "--save-every", "2", "--quiet"},
          {.program = MINE_PROGRAM});
    };
    const std::string whole = "whole_" + mesh.substr(0, 5), fallen = "fallen_" + mesh.substr(0, 5);
    const Finished without = falling(whole, "stands", 0);
    ASSERT_EQ(without.code, 0) << without.err;
    const Finished with = falling(fallen, "falls", 1);
    ASSERT_EQ(with.code, 0) << with.err;
    EXPECT_THAT(with.err, HasSubstr("rank 1"));
    EXPECT_FALSE(fs::exists(folder_ / "runs" / (fallen + "_2")));
    EXPECT_EQ(numbers(whole, "loss"), numbers(fallen, "loss"));
    EXPECT_EQ(numbers(whole, "gradient_norm"), numbers(fallen, "gradient_norm"));
    const Finished lost = falling(fallen + "_0", "falls", 0);
    EXPECT_EQ(lost.code, 137);
  }
}

// Two launchers, as on two machines: each restarts its own rank, and they meet again.
TEST_F(TrainMesh, LaunchersOfTwoNodesRestartToSameBits) {
  const auto start = [](const std::string& model, const std::string& node) {
    return std::make_unique<Started>(folder_, std::vector<std::string>{"launch",
                                                                       "--nodes",
                                                                       "2",
                                                                       "--node-rank",
                                                                       node,
                                                                       "--rendezvous",
                                                                       "127.0.0.1:29611",
                                                                       "--max-restarts",
                                                                       "2",
                                                                       "--",
                                                                       MINE_PROGRAM,
                                                                       "train",
                                                                       "tiny",
                                                                       "--name",
                                                                       "nodes_" + model,
                                                                       "--model",
                                                                       model,
                                                                       "--mesh",
                                                                       "replicate=2",
                                                                       "--batch",
                                                                       "10",
                                                                       "--save-every",
                                                                       "2",
                                                                       "--quiet",
                                                                       "--deadline",
                                                                       "30"});
  };
  for (const std::string model : {"stands", "falls"}) {
    const Stopwatch watch;
    const auto first = start(model, "0"), second = start(model, "1");
    const Finished one = first->wait(), other = second->wait();
    EXPECT_EQ(one.code, 0) << one.err;
    EXPECT_EQ(other.code, 0) << other.err;
    EXPECT_LT(watch.seconds(), 25);
    if (model == "stands") continue;
    for (const Finished& done : {one, other}) {
      EXPECT_THAT(done.err, HasSubstr("(restart 1 of 2)"));
      EXPECT_THAT(done.err, Not(HasSubstr("(restart 2 of 2)")));
    }
  }
  EXPECT_EQ(numbers("nodes_stands", "loss"), numbers("nodes_falls", "loss"));
  EXPECT_FALSE(fs::exists(folder_ / "runs/nodes_falls_2"));
}

// Every rank would refuse it: twenty take ten times as long to start as one process.
TEST_F(TrainMesh, RefusesInvalidRequestsBeforeAnyRankStarts) {
  const auto seconds_of = [](const std::vector<std::string>& more, const char* why) {
    const Stopwatch watch;
    const Finished refused = train("refused", more);
    EXPECT_EQ(refused.code, 2) << why;
    EXPECT_THAT(refused.err, HasSubstr(why));
    return watch.seconds();
  };
  const double one = seconds_of({"--set", "train.batch=none"}, "'batch' in [train]");
  const double most = 4 * one + 2;
  EXPECT_LT(seconds_of({"--mesh", "replicate=20", "--batch", "16"},
                       "a batch of 16 has fewer examples than [mesh] has replicas, 20"),
            most);
  EXPECT_LT(seconds_of({"--mesh", "replicate=20", "--devices", "virtual:3"},
                       "3 devices are given for 20 ranks"),
            most);
  EXPECT_LT(seconds_of({"--ranks", "20", "--replicate", "3"}, "but there are 20 ranks"), most);
  EXPECT_LT(seconds_of({"--ranks", "20", "--balance", "1,1", "--devices", "cpu"},
                       "'balance' in [pipeline] has 2 stages, and 20 ranks are given"),
            most);
  EXPECT_LT(seconds_of({"--ranks", "20", "--loss", "none"}, "none"), most);
  EXPECT_FALSE(fs::exists(folder_ / "runs/refused"));
}

TEST_F(TrainMesh, TorchrunRestartsToSameBits) {
  for (const std::string name : {"stands", "falls"}) {
    const Finished done = run({"--standalone",
                               "--no-python",
                               "--nproc-per-node",
                               "2",
                               "--max-restarts",
                               "1",
                               MINE_PROGRAM,
                               "train",
                               "tiny",
                               "--name",
                               name,
                               "--model",
                               name,
                               "--mesh",
                               "shard=2",
                               "--batch",
                               "10",
                               "--save-every",
                               "2",
                               "--quiet"},
                              {.program = TRESTLE_SOURCE_DIR "/.venv/bin/torchrun"});
    ASSERT_EQ(done.code, 0) << done.err;
  }
  EXPECT_EQ(numbers("stands", "loss"), numbers("falls", "loss"));
  EXPECT_FALSE(fs::exists(folder_ / "runs/falls_2"));
}

}  // namespace
}  // namespace trestle
