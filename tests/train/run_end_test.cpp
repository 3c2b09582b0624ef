#include <gtest/gtest.h>

#include "tests/train/training.h"

// The end of a run, and resuming after it.
namespace trestle::train {
namespace {

class RunEnd : public Training {};

// Patience and plateau count whole epochs only.
TEST_F(RunEnd, PartialEpochDoesNotCountForPatienceAndPlateau) {
  recipe::Recipe judged = recipe();
  judged.train.epochs = 3;
  judged.train.patience = 2;
  judged.train.min_delta = 1;  // of an accuracy: never reached
  judged.optimizer.plateau = true;
  judged.optimizer.plateau_patience = 0;
  judged.optimizer.plateau_threshold = 1;
  judged.optimizer.plateau_threshold_mode = "absolute";
  const TrainResult whole = train(judged, hooks());
  recipe::Recipe shorter = judged;
  shorter.train.max_steps = 4;
  const TrainResult part = train(shorter, hooks());
  ASSERT_EQ(part.epochs, 1);
  EXPECT_EQ(resume(part.run_folder, {{"train.max_steps", "0"}}, hooks()).epochs, whole.epochs);
  EXPECT_EQ(read_file(part.run_folder / "last/weights.safetensors"),
            read_file(whole.run_folder / "last/weights.safetensors"));
  EXPECT_EQ(metrics(part.run_folder), metrics(whole.run_folder));
}

TEST_F(RunEnd, EndedRunNamesFlagsThatResumeIt) {
  EXPECT_EQ(train(recipe(), hooks()).resume_flags, "--epochs N");
  recipe::Recipe some = recipe();
  some.train.max_steps = 4;
  const TrainResult part = train(some, hooks());
  EXPECT_EQ(part.resume_flags, "--max-steps N");
  EXPECT_EQ(resume(part.run_folder, {{"train.epochs", "9"}}, hooks()).resume_flags,
            "--max-steps N");
  some.train.max_steps = 6;
  EXPECT_EQ(train(some, hooks()).resume_flags, "--epochs N --max-steps N");
  some = recipe();
  some.train.epochs = 9;
  some.train.patience = 1;
  some.train.min_delta = 1;
  EXPECT_EQ(train(some, hooks()).resume_flags, "--patience N");
  EXPECT_EQ(train(recipe(), hooks(1)).resume_flags, "") << "stopped, not finished";
}

}  // namespace
}  // namespace trestle::train
