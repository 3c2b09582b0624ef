#include <gmock/gmock.h>

#include <csignal>

#include "tests/apps/program.h"
#include "trestle/base/files.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

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

  const Finished predicted =
      run({"predict", "runs/small", "--images", "cars/train_hq", "--out", "masks"});
  EXPECT_EQ(predicted.code, 0) << predicted.err;
  int masks = 0;
  for (const auto& image : fs::directory_iterator(folder_ / "cars/train_hq")) {
    const std::string mask =
        read_file(folder_ / "masks" / (image.path().stem().string() + "_mask.png"));
    // Width and height stand at bytes 16 to 23 of a PNG file, high byte first.
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
      << "one device or two, the same masks";
}

TEST_F(TrainVerb, AProgramWithItsOwnModelHasEveryVerb) {
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

TEST_F(TrainVerb, ADryRunMakesNothing) {
  const Finished planned = run({"train", "small.toml", "--dry-run", "--name", "dry"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("peak at most"));
  EXPECT_FALSE(fs::exists(folder_ / "runs/dry"));
}

TEST_F(TrainVerb, APlanThatMayNotFitSaysWhatWould) {
  const Finished planned =
      run({"train", "small.toml", "--dry-run", "--batch", "8", "--devices", "virtual:2x2500KiB"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("may not fit"));
  EXPECT_THAT(planned.out, HasSubstr("It would fit with"));
  EXPECT_THAT(run({"train", "small.toml", "--dry-run"}).out, Not(HasSubstr("would fit")));
}

TEST_F(TrainVerb, WithoutValidationThereIsNoBestMetric) {
  const Finished trained =
      run({"train", "small.toml", "--validation", "0", "--epochs", "1", "--name", "unvalidated"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.out, Not(HasSubstr("best dice")));
  EXPECT_THAT(trained.out, HasSubstr("weights runs/unvalidated/best.safetensors"));
}

TEST_F(TrainVerb, NoMemoryIsDrawnForThePlainCpu) {
  const Finished trained =
      run({"train", "small.toml", "--devices", "cpu", "--epochs", "1", "--name", "plain"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  const Finished drawn = run({"view", "runs/plain"});
  EXPECT_THAT(drawn.out, HasSubstr("peak activations"));
  EXPECT_THAT(drawn.out, Not(HasSubstr("peak memory")));
}

TEST_F(TrainVerb, PredictGoesOnAfterAnImageThatIsBroken) {
  ASSERT_EQ(run({"train", "small.toml", "--epochs", "1", "--quiet", "--name", "seen"}).code, 0);
  fs::copy(folder_ / "cars/train_hq", folder_ / "photos");
  write_file(folder_ / "photos/0_first.jpg", "not a picture");
  write_file(folder_ / "photos/zz_last.jpg", "");
  const Finished finished =
      run({"predict", "runs/seen", "--images", "photos", "--out", "some", "--devices", "cpu"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.out, HasSubstr("wrote 16 masks to some"));
  EXPECT_THAT(finished.err,
              testing::AllOf(HasSubstr("2 images could not be read"),
                             HasSubstr("photos/0_first.jpg"), HasSubstr("photos/zz_last.jpg")));
}

TEST_F(TrainVerb, MakesItsDataWhereTheyAreMissing) {
  const std::vector<std::string> arguments = {"train",        "small.toml",
                                              "--name",       "made",
                                              "--epochs",     "1",
                                              "--images",     "made/train_hq",
                                              "--masks",      "made/train_masks",
                                              "--synthesize", "16",
                                              "--scale",      "0.5"};
  const Finished first = run(arguments);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("made/train_hq is missing: making 16 synthetic images"));
  const Finished second = run(arguments);
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.out, Not(HasSubstr("is missing")));
  EXPECT_TRUE(fs::exists(folder_ / "runs/made_2"));
}

TEST_F(TrainVerb, CtrlCFinishesTheStepSavesAndSaysHowToGoOn) {
  const Finished whole = run({"train", "small.toml", "--name", "whole", "--quiet"});
  ASSERT_EQ(whole.code, 0) << whole.err;

  Started training(folder_, {"train", "small.toml", "--name", "stopped", "--json"});
  ASSERT_TRUE(training.wait_for("\"event\":\"step\"")) << training.wait().err;
  training.send(SIGINT);
  const Finished stopped = training.wait();
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("finishing this step, then saving"));
  EXPECT_THAT(stopped.out, HasSubstr("\"finished\":false"));
  ASSERT_TRUE(fs::exists(folder_ / "runs/stopped/last/state.json"));

  const Finished resumed = run({"train", "--resume", "runs/stopped"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("epoch 2/2"));
  EXPECT_EQ(read_file(folder_ / "runs/stopped/last/weights.safetensors"),
            read_file(folder_ / "runs/whole/last/weights.safetensors"));
}

}  // namespace
}  // namespace trestle
