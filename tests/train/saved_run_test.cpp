#include <gmock/gmock.h>

#include "tests/checkpoint/rank_threads.h"
#include "tests/train/training.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/train/predict/export.h"

namespace trestle::train {
namespace {

using ::testing::HasSubstr;

class SavedRun : public Training {
 protected:
  // Converts a checkpoint to version 1, which had no index: the same tensors, and a state that
  // counts batches.
  static void make_version_1(const fs::path& last, std::int64_t batch) {
    nlohmann::json state =
        nlohmann::json::parse(read_file(last / "index.json"))["state"].get<nlohmann::json>();
    const auto samples = state["samples"].get<std::int64_t>();
    state.erase("samples");
    state["batch"] = (samples + batch - 1) / batch;
    state["format"] = 1;
    write_file(last / "state.json", state.dump(2));
    fs::remove(last / "index.json");
  }

  // Rewrites a checkpoint as `size` ranks would write it, each with some parameters.
  static void divide(const fs::path& last, int size) {
    const checkpoint::TrainingCheckpoint all = checkpoint::read_training_checkpoint(last);
    const auto errors = checkpoint::on_ranks(size, [&](const checkpoint::SaveRanks& ranks) {
      const auto own = [&](const NamedTensors& tensors) {
        NamedTensors mine;
        for (const auto& [name, tensor] : tensors)
          if (static_cast<int>(name.size()) % size == ranks.rank) mine.emplace_back(name, tensor);
        return mine;
      };
      checkpoint::write_training_checkpoint(
          last, {own(all.weights), own(all.optimizer), own(all.gradients), all.state}, ranks);
    });
    ASSERT_THAT(errors, ::testing::Each(""));
  }

  static void expect_same_end(const TrainResult& a, const TrainResult& b) {
    for (const char* file : {"last/weights.safetensors", "last/optimizer.safetensors"})
      EXPECT_EQ(read_file(a.run_folder / file), read_file(b.run_folder / file)) << file;
    EXPECT_EQ(metrics(a.run_folder), metrics(b.run_folder));
  }
};

TEST_F(SavedRun, Version1ResumesToSameBits) {
  recipe::Recipe adding = recipe();
  adding.train.batch = 6;
  adding.train.drop_last = false;  // 40 samples: the last batch has 4
  adding.train.accumulate = 4;
  const TrainResult whole = train(adding, hooks());
  for (const int batches : {3, 4, 7}) {
    int left = batches;
    TrainHooks stopping = hooks();
    stopping.should_stop = [&left] { return --left <= 0; };
    TrainResult part = train(adding, stopping);
    make_version_1(part.run_folder / "last", adding.train.batch);
    EXPECT_EQ(checkpoint::read_train_state(part.run_folder / "last").batches, batches);
    expect_same_end(resume(part.run_folder, {}, hooks()), whole);
    EXPECT_FALSE(fs::exists(part.run_folder / "last/state.json"));
  }
}

TEST_F(SavedRun, CheckpointOfManyRanksResumesToSameBits) {
  const TrainResult whole = train(recipe(), hooks());
  for (const int ranks : {2, 3}) {
    const TrainResult part = train(recipe(), hooks(4));
    divide(part.run_folder / "last", ranks);
    EXPECT_FALSE(fs::exists(part.run_folder / "last/weights.safetensors"));
    expect_same_end(resume(part.run_folder, {}, hooks()), whole);
  }
}

TEST_F(SavedRun, StoresPositionInEpochAsSample) {
  recipe::Recipe kept = recipe();
  kept.train.drop_last = false;
  const TrainResult part = train(kept, hooks(2));
  const fs::path last = part.run_folder / "last";
  EXPECT_EQ(checkpoint::read_train_state(last).samples, 24);
  // The epoch's last batch has 4 of its 40 samples.
  EXPECT_EQ(checkpoint::read_train_state(train(kept, hooks(4)).run_folder / "last").samples, 40);
  EXPECT_EQ(checkpoint::read_train_state(train(kept, hooks()).run_folder / "last").samples, 0);

  std::string index = read_file(last / "index.json");
  index.replace(index.find("\"samples\": 24"), 13, "\"samples\": 25");
  write_file(last / "index.json", index);
  try {
    resume(part.run_folder, {}, hooks());
    FAIL() << "nothing was thrown";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("stands at sample 25 of an epoch of 40, which is not "
                                        "between two batches of 12"));
  }
}

TEST_F(SavedRun, CheckpointOfManyRanksIsExportedAsOneFile) {
  const TrainResult part = train(recipe(), hooks(4));
  const fs::path last = part.run_folder / "last";
  export_weights({.from = last, .out = base_ / "before.safetensors"});
  divide(last, 3);
  const ExportResult made = export_weights({.from = last, .out = base_ / "after.safetensors"});
  EXPECT_EQ(made.from, last);
  EXPECT_EQ(made.tensors, 9u);
  const auto before = checkpoint::read_tensors(base_ / "before.safetensors");
  const auto after = checkpoint::read_tensors(base_ / "after.safetensors");
  const std::map<std::string, at::Tensor> expected(before.tensors.begin(), before.tensors.end());
  ASSERT_EQ(after.tensors.size(), 9u);
  for (const auto& [name, tensor] : after.tensors)
    EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << name;
  export_weights(
      {.from = part.run_folder, .out = base_ / "again.safetensors", .which = Checkpoint::Last});
  EXPECT_EQ(read_file(base_ / "again.safetensors"), read_file(base_ / "after.safetensors"));
  EXPECT_THROW(export_weights({.from = last, .out = last / "weights.rank0.safetensors"}),
               UsageError);
}

}  // namespace
}  // namespace trestle::train
