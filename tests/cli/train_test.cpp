#include <gmock/gmock.h>

#include <csignal>

#include "tests/cli/program.h"
#include "trestle/base/files.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainVerb : public ProgramTest {};

TEST_F(TrainVerb, TrainsPredictsAndDraws) {
  const Finished trained = run({"train", "small.toml", "--epochs", "1"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(trained.err, "");
  EXPECT_THAT(trained.out, HasSubstr("cut [13, 9] (balance: given)"));
  EXPECT_THAT(trained.out, HasSubstr("epoch 1/1 "));
  EXPECT_THAT(trained.out, HasSubstr("continue: trestle train --resume runs/small"));
  EXPECT_THAT(trained.out, Not(HasSubstr("\x1b")));

  const Finished drawn = run({"view", "runs/small", "--out", "run.svg"});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_THAT(drawn.out, HasSubstr("simulated"));
  EXPECT_THAT(drawn.out, HasSubstr("measured"));
  const Finished page = run({"view", "runs/small", "--out", "run.html"});
  EXPECT_EQ(page.code, 0) << page.err;
  EXPECT_THAT(page.out, HasSubstr("wrote run.html"));
  EXPECT_THAT(read_file(folder_ / "run.html"),
              ::testing::AllOf(HasSubstr("\"title\":\"simulated gpipe\""),
                               HasSubstr("\"title\":\"measured\""), HasSubstr("</html>")));

  const Finished predicted =
      run({"predict", "runs/small", "--images", "cars/train_hq", "--out", "masks"});
  EXPECT_EQ(predicted.code, 0) << predicted.err;
  int masks = 0;
  for (const auto& image : fs::directory_iterator(folder_ / "cars/train_hq")) {
    if (image.path().extension() != ".jpg") continue;  // skips the marker of synthetic data
    const std::string mask =
        read_file(folder_ / "masks" / (image.path().stem().string() + "_mask.png"));
    // A PNG file stores width and height at bytes 16 to 23, high byte first.
    EXPECT_EQ(static_cast<int>(mask[19]), 48);
    EXPECT_EQ(static_cast<int>(mask[23]), 32);
    ++masks;
  }
  EXPECT_EQ(masks, 16);
  EXPECT_EQ(run({"predict", "runs/small/best.safetensors", "--images", "cars/train_hq", "--out",
                 "masks2", "--devices", "cpu"})
                .code,
            0);
  const fs::path one = fs::directory_iterator(folder_ / "masks")->path();
  EXPECT_EQ(read_file(folder_ / "masks2" / one.filename()), read_file(one))
      << "masks do not depend on the devices";

  // The masks of the training are the user's.
  const Finished over =
      run({"predict", "runs/small", "--images", "cars/train_hq", "--out", "masks"});
  EXPECT_EQ(over.code, 2);
  EXPECT_THAT(over.err, HasSubstr("16 of 16 files that would be written exist already: masks/"));
  EXPECT_EQ(
      run({"predict", "runs/small", "--images", "cars/train_hq", "--out", "masks", "--overwrite"})
          .code,
      0);

  const Finished beside_gifs =
      run({"predict", "runs/small", "--images", "cars/train_hq", "--out", "cars/train_masks"});
  EXPECT_EQ(beside_gifs.code, 2) << "a data set would find two masks for each image";
  EXPECT_THAT(beside_gifs.err, HasSubstr("_mask.gif"));

  // No mask overwrites another.
  fs::copy(folder_ / "cars/train_hq", folder_ / "mixed");
  fs::path first;
  for (const auto& entry : fs::directory_iterator(folder_ / "mixed"))
    if (entry.path().extension() == ".jpg") first = entry.path();
  fs::copy_file(first, folder_ / "mixed" / (first.stem().string() + ".jpeg"));
  const Finished beside = run({"predict", "runs/small", "--images", "mixed", "--out", "mixed"});
  EXPECT_THAT(beside.err, HasSubstr("'out' is the folder of the images"));
  const Finished inside = run({"predict", "runs/small", "--images", "mixed", "--out", "mixed/m"});
  EXPECT_THAT(inside.out, HasSubstr("wrote 17 masks")) << inside.err;
  EXPECT_TRUE(fs::exists(folder_ / "mixed/m" / (first.stem().string() + ".jpeg_mask.png")));
  EXPECT_TRUE(fs::exists(folder_ / "mixed/m" / (first.filename().string() + "_mask.png")));
}

// Photos with predicted masks are ordinary data.
TEST_F(TrainVerb, TrainsOnTwoFoldersAndOnWhatItPredicted) {
  write_recipe("own", "name = \"carvana\"", "name = \"segmentation\"\nmask_suffix = \"_mask\"");
  const Finished checked = run({"data", "check", "own.toml"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("classes: 0 = 0 ("));
  write_recipe("lost", "cars/train_hq", "gone/train_hq");
  EXPECT_THAT(run({"data", "check", "lost.toml"}).err,
              HasSubstr("'images' in [data] of lost.toml: there is no folder 'gone/train_hq'"));
  const Finished first = run({"train", "own.toml"});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("classes   0 = 0 ("));
  EXPECT_THAT(first.out, HasSubstr("), 1 = 1 ("));
  EXPECT_THAT(read_file(folder_ / "runs/own/recipe.toml"),
              HasSubstr("mask_values = [\"0\", \"1\"]"));
  const Finished on = run({"train", "--resume", "runs/own", "--epochs", "3"});
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_THAT(on.out, HasSubstr("classes   0 = 0, 1 = 1\n"));
  ASSERT_EQ(run({"predict", "runs/own", "--images", "cars/train_hq", "--out", "own_masks"}).code,
            0);
  const Finished again = run({"train", "own.toml", "--masks", "own_masks", "--name", "again",
                              "--epochs", "1", "--mask-values", "0,255"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("classes   0 = 0, 1 = 255"));
}

TEST_F(TrainVerb, TrainsOnArrays) {
  const std::string set = TRESTLE_SOURCE_DIR "/tests/golden/npy/packed.npz";
  for (const char* model : {"mlp", "toy"})
    write_file(folder_ / (std::string(model) + ".toml"),
               "[model]\nname = \"" + std::string(model) +
                   "\"\nclasses = 40\nchannels = 50\n[data]\nname = \"arrays\"\n"
                   "input_array = \"" +
                   set + ":x\"\ntarget_array = \"" + set + ":y\"\n");
  for (const char* model : {"mlp.toml", "toy.toml"}) {
    const Finished trained = run({"train", model});
    EXPECT_EQ(trained.code, 0) << trained.err;
    EXPECT_THAT(trained.out, Not(HasSubstr("picture")));
  }
  const Finished checked =
      run({"data", "check", "arrays", "--input-array", set + ":x", "--target-array", set + ":y"});
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("40 good examples\n  40 of 50\n"));
  EXPECT_THAT(
      run({"data", "check", "arrays", "--input-array", "no.npy", "--target-array", "no.npy"}).err,
      HasSubstr("--input-array: there is no file 'no.npy'"));
}

TEST_F(TrainVerb, FlattensImagesForRowModel) {
  write_file(folder_ / "rows.toml",
             "[model]\nname = \"mlp\"\nclasses = 10\n[data]\nname = \"mnist\"\n"
             "folder = \"rows\"\nsynthesize = 60\n");
  const Finished narrow = run({"train", "rows.toml"});
  EXPECT_EQ(narrow.code, 2);
  EXPECT_THAT(narrow.err, HasSubstr("set channels = 784 in [model]"));
  const Finished trained = run({"train", "rows.toml", "--channels", "784"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("synthetic (rows-synthetic)"));
  const Finished classes = run({"train", "rows.toml", "--channels", "784", "--classes", "5"});
  EXPECT_EQ(classes.code, 2);
  EXPECT_THAT(classes.err, HasSubstr("'classes' in [model] is 5, the data of 'mnist' have 10"));
  const Finished own = run({"train", "rows.toml", "--channels", "784", "--classes", "0"});
  EXPECT_EQ(own.code, 2) << "the model's default is 5";
  EXPECT_THAT(own.err, HasSubstr("more classes than"));
  const Finished toy = run({"train", "rows.toml", "--model.name", "toy"});
  EXPECT_EQ(toy.code, 2);
  EXPECT_THAT(toy.err, HasSubstr("'mlp' flattens images"));
}

TEST_F(TrainVerb, TrainsOnGreyImagesInClassFolders) {
  write_recipe("sorted", "name = \"carvana\"",
               "name = \"classification\"\nfolder = \"sorted\"\nimage_width = 28\n"
               "image_height = 28");
  for (const char* name : {"sorted/a", "sorted/b"}) fs::create_directories(folder_ / name);
  int count = 0;
  for (const auto& image : fs::directory_iterator(folder_ / "cars/train_hq"))
    if (image.path().extension() == ".jpg")
      fs::copy(image, folder_ / (count++ % 2 == 0 ? "sorted/a" : "sorted/b"));
  const std::vector<std::string> words = {"train",      "sorted.toml", "--model.name",  "resnet18",
                                          "--channels", "1",           "--model.width", "4",
                                          "--balance",  "[]",          "--epochs",      "1"};
  std::vector<std::string> two = words, one = words;
  two.insert(two.end(), {"--classes", "2"});
  const Finished trained = run(two);
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("classes   0 = a (8), 1 = b (8)"));
  one.insert(one.end(), {"--classes", "1"});
  const Finished wrong = run(one);
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err,
              HasSubstr("'classes' in [model] is 1, the data of 'classification' have 2"));
}

TEST_F(TrainVerb, ProgramWithOwnModelHasEveryVerb) {
  const RunWith mine{.program = MINE_PROGRAM};
  const Finished trained =
      run({"train", "small.toml", "--model.name", "mine", "--name", "mine", "--epochs", "1",
           "--devices", "cpu,cpu", "--balance", "[]", "--schedule", "1f1b", "--loss",
           "cross_entropy+dice_per_micro_batch"},
          mine);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("mine · 4 layers"));
  EXPECT_THAT(trained.out, HasSubstr("(balance: measured)"));
  const Finished masks =
      run({"predict", "runs/mine", "--images", "cars/train_hq", "--out", "m"}, mine);
  EXPECT_EQ(masks.code, 0) << masks.err;
  EXPECT_EQ(run({"predict", "runs/mine", "--images", "cars/train_hq", "--out", "m"}).code, 2)
      << "trestle has no 'mine'";
}

// The example with a user-defined model, data set, loss and metric.
TEST_F(TrainVerb, SupportsUserDefinedParts) {
  const RunWith own{.program = OWN_PARTS_PROGRAM};
  const std::string recipe = TRESTLE_SOURCE_DIR "/examples/own_parts/spirals.toml";
  const Finished trained = run({"train", recipe, "--epochs", "3"}, own);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("rings · 5 layers"));
  EXPECT_THAT(trained.out, HasSubstr("  recall "));
  EXPECT_THAT(read_file(folder_ / "runs/spirals/curve.svg"), HasSubstr("recall"));
  EXPECT_EQ(run({"train", "--resume", "runs/spirals", "--epochs", "4"}, own).code, 0);
  EXPECT_THAT(run({"data", "check", recipe}, own).out, HasSubstr("600 good examples"));
  EXPECT_EQ(run({"balance", recipe}, own).code, 0);
  EXPECT_THAT(run({"doctor"}, own).out,
              ::testing::AllOf(HasSubstr(", rings"), HasSubstr(", spirals"), HasSubstr(", focal"),
                               HasSubstr(", recall")));
  EXPECT_THAT(run({"train", "--help"}, own).out, HasSubstr(" spirals"));
  for (const auto& [flag, wrong, known] :
       {std::tuple{"--model.name", "ring", "rings"}, std::tuple{"--data.name", "spiral", "spirals"},
        std::tuple{"--loss", "focel", "focal"}, std::tuple{"--metric", "recal", "recall"}}) {
    const Finished refused = run({"train", recipe, flag, wrong}, own);
    EXPECT_EQ(refused.code, 2) << flag;
    EXPECT_THAT(refused.err, HasSubstr(std::string("did you mean '") + known + "'?"));
  }
  EXPECT_EQ(
      run({"predict", "runs/spirals", "--images", "cars/train_hq", "--out", "none"}, own).code, 1)
      << "the run was trained on points, not images";
  EXPECT_EQ(run({"train", recipe}).code, 2) << "trestle has none of these";
}

TEST_F(TrainVerb, DryRunCreatesNothing) {
  const Finished planned = run({"train", "small.toml", "--dry-run", "--name", "dry"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("peak about"));
  EXPECT_FALSE(fs::exists(folder_ / "runs/dry"));
}

// A plan for another machine, before its data exist.
TEST_F(TrainVerb, DryRunNeedsNeitherDataNorDevices) {
  const Finished planned =
      run({"train", "small.toml", "--dry-run", "--images", "later/train_hq", "--masks",
           "later/train_masks", "--synthesize", "1000", "--devices", "cuda:0,cuda:1"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("stage 1   cuda:1"));
  EXPECT_THAT(planned.out, HasSubstr("(from small samples)"));
  EXPECT_THAT(planned.out, HasSubstr("data      not there yet: later/train_hq"));
  EXPECT_FALSE(fs::exists(folder_ / "later"));
}

TEST_F(TrainVerb, SuggestsFitForPlanThatMayNotFit) {
  const Finished planned =
      run({"train", "small.toml", "--dry-run", "--batch", "8", "--devices", "virtual:2x2500KiB"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("may not fit"));
  EXPECT_THAT(planned.out, HasSubstr("It would fit with"));
  EXPECT_THAT(run({"train", "small.toml", "--dry-run"}).out, Not(HasSubstr("would fit")));
}

TEST_F(TrainVerb, PrintsNoBestMetricWithoutValidation) {
  const Finished trained =
      run({"train", "small.toml", "--validation", "0", "--epochs", "1", "--name", "unvalidated"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out, Not(HasSubstr("best dice")));
  EXPECT_THAT(trained.out, HasSubstr("weights runs/unvalidated/best.safetensors"));
}

TEST_F(TrainVerb, DrawsNoMemoryForPlainCpu) {
  const Finished trained =
      run({"train", "small.toml", "--devices", "cpu", "--epochs", "1", "--name", "plain"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  const Finished drawn = run({"view", "runs/plain"});
  EXPECT_THAT(drawn.out, HasSubstr("peak activations"));
  EXPECT_THAT(drawn.out, Not(HasSubstr("peak memory")));
}

TEST_F(TrainVerb, PredictSkipsBrokenImages) {
  ASSERT_EQ(run({"train", "small.toml", "--epochs", "1", "--quiet", "--name", "seen"}).code, 0);
  fs::copy(folder_ / "cars/train_hq", folder_ / "photos");
  write_file(folder_ / "photos/0_first.jpg", "not a picture");
  write_file(folder_ / "photos/zz_last.jpg", "");
  fs::create_symlink("round.jpg", folder_ / "photos/round.jpg");
  const Finished finished =
      run({"predict", "runs/seen", "--images", "photos", "--out", "some", "--devices", "cpu"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.out, HasSubstr("wrote 16 masks to some"));
  EXPECT_THAT(
      finished.err,
      ::testing::AllOf(HasSubstr("3 images could not be read"), HasSubstr("photos/round.jpg"),
                       HasSubstr("photos/0_first.jpg"), HasSubstr("photos/zz_last.jpg")));
}

// Regression: "a.jpg.png", and "a.jpg" beside "a.png", both became a.jpg_mask.png, and one was
// lost.
TEST_F(TrainVerb, PredictWritesUniqueMaskPerImage) {
  ASSERT_EQ(run({"train", "small.toml", "--epochs", "1", "--quiet", "--name", "own"}).code, 0);
  const fs::path image = fs::directory_iterator(folder_ / "cars/train_hq")->path();
  fs::create_directories(folder_ / "alike");
  for (const char* name : {"a.jpg", "a.png", "a.jpg.png", "b.png"})
    fs::copy(image, folder_ / "alike" / name);
  const Finished finished =
      run({"predict", "runs/own", "--images", "alike", "--out", "apart", "--devices", "cpu"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("wrote 4 masks"));
  for (const char* name : {"a.jpg_mask.png", "a.png_mask.png", "a.jpg.png_mask.png", "b_mask.png"})
    EXPECT_TRUE(fs::exists(folder_ / "apart" / name)) << name;
}

TEST_F(TrainVerb, SynthesizesMissingData) {
  const std::vector<std::string> arguments = {"train",        "small.toml",
                                              "--name",       "made",
                                              "--epochs",     "1",
                                              "--images",     "made/train_hq",
                                              "--masks",      "made/train_masks",
                                              "--synthesize", "16",
                                              "--scale",      "0.5"};
  const Finished first = run(arguments);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("made/train_hq is missing: synthesizing data in "
                                   "made-synthetic (16 images of cars, 96 x 64 pixels"));
  EXPECT_THAT(first.out, HasSubstr("synthetic (made-synthetic/train_hq) · 12 to train on"));
  EXPECT_FALSE(fs::exists(folder_ / "made")) << "the folder for real data stays missing";
  EXPECT_THAT(read_file(folder_ / "runs/made/metrics.jsonl"), HasSubstr("\"synthetic_data\":true"));
  EXPECT_THAT(read_file(folder_ / "runs/made/curve.svg"), HasSubstr("made, synthetic data"));
  EXPECT_THAT(read_file(folder_ / "runs/made/recipe.toml"), HasSubstr("made-synthetic/train_hq"));
  const Finished second = run(arguments);
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.out, Not(HasSubstr("is missing")));
  EXPECT_THAT(second.out, HasSubstr("synthetic (made-synthetic/train_hq)"));
  EXPECT_TRUE(fs::exists(folder_ / "runs/made_2"));
}

TEST_F(TrainVerb, CtrlCFinishesStepAndSaves) {
  // Enough epochs that the signal comes before the end on a busy machine.
  const Finished whole =
      run({"train", "small.toml", "--name", "whole", "--epochs", "15", "--quiet"});
  ASSERT_EQ(whole.code, 0) << whole.err;

  Started training(folder_,
                   {"train", "small.toml", "--name", "stopped", "--epochs", "15", "--json"});
  ASSERT_TRUE(training.wait_for("\"event\":\"step\"")) << training.wait().err;
  training.send(SIGINT);
  const Finished stopped = training.wait();
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("finishing this step, then saving"));
  EXPECT_THAT(stopped.out, HasSubstr("\"finished\":false"));
  ASSERT_TRUE(fs::exists(folder_ / "runs/stopped/last/index.json"));

  const Finished resumed = run({"train", "--resume", "runs/stopped"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("epoch 15/15"));
  EXPECT_EQ(read_file(folder_ / "runs/stopped/last/weights.safetensors"),
            read_file(folder_ / "runs/whole/last/weights.safetensors"));
}

// Regression: with its data gone, the run synthesized others and trained on those.
TEST_F(ProgramTest, ResumeNeedsItsOriginalData) {
  write_recipe("going_on", "workers = 1", "workers = 1\nsynthesize = 16");
  ASSERT_EQ(run({"train", "going_on.toml", "--epochs", "1"}).code, 0);
  fs::rename(folder_ / "cars", folder_ / "elsewhere");
  const Finished gone = run({"train", "--resume", "runs/going_on", "--epochs", "2"});
  EXPECT_NE(gone.code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "cars")) << "data were synthesized again";
  fs::rename(folder_ / "elsewhere", folder_ / "cars");
  std::vector<fs::path> images;
  for (const auto& entry : fs::directory_iterator(folder_ / "cars/train_hq"))
    images.push_back(entry.path());
  for (std::size_t i = 0; i < 8; ++i) fs::rename(images[i], folder_ / images[i].filename());
  const Finished fewer = run({"train", "--resume", "runs/going_on", "--epochs", "2"});
  EXPECT_EQ(fewer.code, 2) << fewer.err;
  EXPECT_THAT(fewer.err, HasSubstr("training examples, and had 12 when this run was saved"));
  for (std::size_t i = 0; i < 8; ++i) fs::rename(folder_ / images[i].filename(), images[i]);
  // The same number of batches of other images.
  const fs::path mask = fs::directory_iterator(folder_ / "cars/train_masks")->path();
  const fs::path added = "cars/train_hq/added" + images[0].extension().string();
  const fs::path its_mask = "cars/train_masks/added_mask" + mask.extension().string();
  fs::copy(images[0], folder_ / added);
  fs::copy(mask, folder_ / its_mask);
  const Finished more = run({"train", "--resume", "runs/going_on", "--epochs", "2"});
  EXPECT_EQ(more.code, 2) << more.out;
  EXPECT_THAT(more.err, HasSubstr("are not those that this run was saved with"));
  fs::remove(folder_ / added);
  fs::remove(folder_ / its_mask);
  EXPECT_EQ(run({"train", "--resume", "runs/going_on", "--epochs", "2"}).code, 0);
}

// A key without effect in this run is reported.
TEST_F(TrainVerb, ReportsCoresThatCannotBeLent) {
  write_recipe("lending", "[pipeline]", "[pipeline]\nlend_cores = true");
  const Finished apart = run({"train", "lending.toml", "--dry-run"});
  EXPECT_THAT(apart.out, HasSubstr(" · cores lent")) << apart.err;
  const Finished together = run({"train", "lending.toml", "--dry-run", "--devices", "cpu"});
  EXPECT_THAT(together.out, HasSubstr("no cores lent: each stage needs a virtual device"));
}

}  // namespace
}  // namespace trestle
