#include <gmock/gmock.h>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

// Verbs that use a run's results, from any directory.
namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class EvaluateVerb : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    const Finished trained = run({"train", "small.toml", "--quiet"});
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  // The text of the last epoch's line in metrics.jsonl between two keys.
  static std::string metrics_of_last_epoch(const std::string& run_name) {
    const std::string all = read_file(folder_ / "runs" / run_name / "metrics.jsonl");
    const auto from = all.rfind("\"validation_loss\"");
    return all.substr(from, all.find(",\"learning_rate\"", from) - from);
  }
  // Starts the program in another directory.
  static Finished run_in(const std::string& directory, const std::string& words) {
    return run({"-c", "cd '" + directory + "' && '" TRESTLE_PROGRAM "' " + words},
               {.program = "/bin/sh"});
  }
};

TEST_F(EvaluateVerb, PrintsMetricsOfRun) {
  const Finished last = run({"evaluate", "runs/small", "--checkpoint", "last", "--json"});
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_THAT(last.out, HasSubstr(metrics_of_last_epoch("small"))) << "equal to the last digit";
  EXPECT_THAT(last.out, AllOf(HasSubstr("\"epoch\":2"), HasSubstr("\"examples\":4"),
                              HasSubstr("\"synthetic_data\":true")));
  const Finished words = run({"evaluate", "runs/small"});
  ASSERT_EQ(words.code, 0) << words.err;
  EXPECT_THAT(words.out,
              AllOf(HasSubstr("weights   runs/small/best.safetensors · epoch "),
                    HasSubstr("data      4 examples of cars/train_hq, cars/train_masks, the run's "
                              "own for validation, synthetic\n"),
                    HasSubstr("\nloss      "), HasSubstr("\ndice      ")));
}

TEST_F(EvaluateVerb, TakesOtherDataByFlags) {
  ASSERT_EQ(run({"data", "synthesize", "carvana", "--count", "5", "--out", "others", "--width",
                 "48", "--height", "32", "--seed", "7"})
                .code,
            0);
  const Finished others = run({"evaluate", "runs/small", "--images", "others/train_hq", "--masks",
                               "others/train_masks", "--devices", "cpu"});
  ASSERT_EQ(others.code, 0) << others.err;
  EXPECT_THAT(others.out, HasSubstr("data      5 examples of others/train_hq, others/train_masks, "
                                    "synthetic\n"));
}

// predict writes masks of 0 and 255; the run's own have 0 and 1.
TEST_F(EvaluateVerb, AcceptsPredictedMasks) {
  ASSERT_EQ(run({"predict", "runs/small", "--images", "cars/train_hq", "--out", "predicted"}).code,
            0);
  const Finished same = run({"evaluate", "runs/small", "--images", "cars/train_hq", "--masks",
                             "predicted", "--mask-values", "0,255", "--json"});
  ASSERT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.out, HasSubstr("\"dice\":1.0"));
}

// No flag allows it: the run could not be resumed.
TEST_F(EvaluateVerb, NoVerbReplacesFilesOfARun) {
  const auto index = read_file(folder_ / "runs/small/last/index.json");
  const auto metrics = read_file(folder_ / "runs/small/metrics.jsonl");
  const auto refused = [](std::vector<std::string> words) {
    words.emplace_back("--overwrite");
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, 2) << words[0] << "\n" << finished.out;
    EXPECT_THAT(finished.err, HasSubstr("exists and is a file of a run")) << words[0];
  };
  refused({"balance", "small.toml", "--save", "runs/small/last/index.json"});
  refused({"view", "--schedule", "gpipe", "--save-csv", "runs/small/metrics.jsonl"});
  refused({"view", "--schedule", "gpipe", "--out", "runs/small/timeline.json"});
  refused({"view", "runs/small", "--out", "runs/../runs/small/environment.json"});
  refused({"export", "runs/small", "--checkpoint", "last", "--out", "runs/small/best.safetensors"});
  EXPECT_EQ(read_file(folder_ / "runs/small/last/index.json"), index);
  EXPECT_EQ(read_file(folder_ / "runs/small/metrics.jsonl"), metrics);
  for (int twice = 0; twice < 2; ++twice) {  // the caller's own file beside them
    const Finished done =
        run({"view", "runs/small", "--out", "runs/small/mine.svg", "--overwrite"});
    EXPECT_EQ(done.code, 0) << done.err;
  }
}

TEST_F(EvaluateVerb, RefusesInvalidRequestsWithHints) {
  const auto refused = [&](const std::vector<std::string>& words, const char* why) {
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, 2) << words[1];
    EXPECT_THAT(finished.err, HasSubstr(why));
  };
  refused({"evaluate", "runs/none"}, "no such run folder");
  refused({"evaluate", "cars"}, "not a run folder");
  refused({"evaluate", "runs/small", "--checkpoint", "first"}, "--checkpoint");
  refused({"evaluate", "runs/small/best.safetensors", "--checkpoint", "last"},
          "--checkpoint has no effect with runs/small/best.safetensors");
  refused({"evaluate", "runs/small", "--folder", "x"}, "'folder' in [data] has no effect");
  refused({"evaluate", "runs/small", "--images", "none"}, "none");
  refused({"evaluate", "runs/small", "--metric", "accurac"}, "did you mean 'accuracy'?");
  refused({"evaluate", "runs/small", "--learning-rate", "1"}, "unknown flag");
  refused({"predict", "runs/small", "--images", "cars/train_hq", "--out", "m", "--top-k", "2"},
          "'top_k' has no effect for 'carvana'");
}

TEST_F(EvaluateVerb, SupportsUserDefinedParts) {
  const RunWith own{.program = OWN_PARTS_PROGRAM};
  const std::string recipe = TRESTLE_SOURCE_DIR "/examples/own_parts/spirals.toml";
  ASSERT_EQ(run({"train", recipe, "--epochs", "2", "--quiet"}, own).code, 0);
  const Finished last = run({"evaluate", "runs/spirals", "--checkpoint", "last", "--json"}, own);
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_THAT(last.out, HasSubstr(metrics_of_last_epoch("spirals")));
  EXPECT_THAT(last.out, HasSubstr("\"recall\":"));
  EXPECT_EQ(run({"evaluate", "runs/spirals"}).code, 2) << "trestle has none of these";
}

TEST_F(EvaluateVerb, IsInHelpAndCompletion) {
  EXPECT_THAT(run({"--help"}).out, HasSubstr("evaluate"));
  const Finished help = run({"evaluate", "--help"});
  EXPECT_THAT(help.out,
              AllOf(HasSubstr("--checkpoint"), HasSubstr("--images"),
                    HasSubstr("Examples:\n  trestle evaluate"), Not(HasSubstr("--learning-rate"))));
  EXPECT_EQ(completed({"eva"}), "evaluate\n");
  EXPECT_EQ(completed({"evaluate", "--check"}), "--checkpoint\n");
  EXPECT_EQ(completed({"predict", "--top"}), "--top-k\n");
}

// A recipe's paths are relative to the directory in which the run was started.
TEST_F(EvaluateVerb, AcceptsRunFolderFromAnyDirectory) {
  fs::create_directories(folder_ / "far/away");
  const Finished near = run({"evaluate", "runs/small", "--json"});
  const Finished far = run_in("far/away", "evaluate ../../runs/small --json");
  ASSERT_EQ(far.code, 0) << far.err;
  const auto numbers = [](const Finished& finished) {
    const auto from = finished.out.find("\"validation_loss\"");
    return finished.out.substr(from, finished.out.find(",\"seconds\"") - from);
  };
  EXPECT_EQ(numbers(far), numbers(near));
  EXPECT_THAT(far.out, HasSubstr("\"data\":[\"../../cars/train_hq\""));

  ASSERT_EQ(run({"train", "small.toml", "--quiet", "--name", "twice"}).code, 0);
  const Finished resumed = run_in("far/away", "train --resume ../../runs/twice --epochs 3 --quiet");
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  ASSERT_EQ(run({"train", "small.toml", "--quiet", "--name", "straight", "--epochs", "3"}).code, 0);
  EXPECT_EQ(metrics_of_last_epoch("twice"), metrics_of_last_epoch("straight"));
  EXPECT_THAT(read_file(folder_ / "runs/twice/recipe.toml"),
              HasSubstr("images = \"cars/train_hq\""))
      << "paths stay as given";
  EXPECT_THAT(read_file(folder_ / "runs/twice/environment.json"),
              HasSubstr("\"started_in\": \"../..\""));
  EXPECT_EQ(run({"train", "--resume", "runs/twice", "--epochs", "4", "--quiet"}).code, 0);
}

TEST_F(EvaluateVerb, FindsDataMovedWithRun) {
  fs::create_directories(folder_ / "moved");
  fs::copy(folder_ / "cars", folder_ / "moved/cars", fs::copy_options::recursive);
  fs::copy(folder_ / "runs", folder_ / "moved/runs", fs::copy_options::recursive);
  fs::rename(folder_ / "cars", folder_ / "cars_away");
  const Finished moved = run({"evaluate", "moved/runs/small"});
  fs::rename(folder_ / "cars_away", folder_ / "cars");
  ASSERT_EQ(moved.code, 0) << moved.err;
  EXPECT_THAT(moved.out, HasSubstr("moved/cars/train_hq"));
  // A run that was moved alone finds its data by the recipe's paths.
  fs::create_directories(folder_ / "elsewhere/deep/down");
  fs::copy(folder_ / "runs/small", folder_ / "elsewhere/deep/down/small",
           fs::copy_options::recursive);
  const Finished alone = run({"evaluate", "elsewhere/deep/down/small"});
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_THAT(alone.out, HasSubstr(" of cars/train_hq"));
}

TEST_F(EvaluateVerb, PredictWritesTableOfClasses) {
  ASSERT_EQ(run({"data", "synthesize", "mnist", "--count", "40", "--out", "digits"}).code, 0);
  write_file(
      folder_ / "digits.toml",
      "[model]\nname = \"mlp\"\nchannels = 784\nclasses = 10\n[data]\nname = \"mnist\"\nfolder = "
      "\"digits\"\n[train]\nepochs = 1\nbatch = 20\n");
  ASSERT_EQ(run({"train", "digits.toml", "--quiet"}).code, 0);
  const Finished table = run(
      {"predict", "runs/digits", "--images", "cars/train_hq", "--out", "classes", "--top-k", "2"});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("wrote the classes of 16 images to classes/predictions.csv"));
  EXPECT_THAT(read_file(folder_ / "classes/predictions.csv"),
              ::testing::StartsWith("file,class,probability,class_2,probability_2\n"));
  fs::copy(folder_ / "cars/train_hq", folder_ / "some");
  write_file(folder_ / "some/zz.jpg", "not a picture");
  const Finished json =
      run({"predict", "runs/digits", "--images", "some", "--out", "others", "--json"});
  EXPECT_EQ(json.code, 1);
  EXPECT_THAT(json.out, AllOf(::testing::StartsWith("{\"file\":\"some/"),
                              HasSubstr("\"class_id\":"), HasSubstr("{\"problem\":\"some/zz.jpg")));
  EXPECT_THAT(json.err, HasSubstr("1 image could not be read"));
  EXPECT_EQ(run({"predict", "runs/digits", "--images", "some", "--out", "o", "--top-k", "0"}).code,
            2);
}

}  // namespace
}  // namespace trestle
