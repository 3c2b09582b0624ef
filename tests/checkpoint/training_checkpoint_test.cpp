#include "trestle/checkpoint/training_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>

#include "tests/checkpoint/rank_threads.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/checkpoint/weights.h"

namespace trestle::checkpoint {
namespace {

namespace fs = std::filesystem;

class ResumeFolder : public testing::Test {
 protected:
  void SetUp() override {
    base_ =
        fs::path(TRESTLE_BINARY_DIR) / "scratch" /
        (std::string("resume_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(base_);
    fs::create_directories(base_);
    folder_ = base_ / "last";
  }
  void TearDown() override { fs::remove_all(base_); }

  fs::path base_, folder_;
};

TrainingCheckpoint at_step(std::int64_t step, std::int64_t size = 4) {
  TrainingCheckpoint resume;
  resume.weights = {{"w", torch::full({size}, static_cast<double>(step))}};
  resume.optimizer = {{"w.square_avg", torch::full({size}, 0.5)}};
  resume.state = {.step = step,
                  .epoch = 1,
                  .samples = 24,
                  .seed = ~std::uint64_t{0},
                  .best_epoch = 0,
                  .best_metric = 0.1 + 0.2,
                  .recipe_hash = "abc",
                  .numbers = {{"loss_sum", 1.0 / 3}}};
  return resume;
}

double name_value(const std::string& name) { return static_cast<double>(name.size()); }

TEST_F(ResumeFolder, RoundTripsToTheBit) {
  write_training_checkpoint(folder_, at_step(1));
  write_training_checkpoint(folder_, at_step(2));
  const TrainingCheckpoint back = read_training_checkpoint(folder_);
  EXPECT_EQ(back.state.step, 2);
  EXPECT_EQ(back.state.epoch, 1);
  EXPECT_EQ(back.state.samples, 24);
  EXPECT_FALSE(back.state.batches);
  EXPECT_EQ(back.state.seed, ~std::uint64_t{0});
  EXPECT_EQ(back.state.best_metric, 0.1 + 0.2);
  EXPECT_EQ(back.state.recipe_hash, "abc");
  EXPECT_EQ(back.state.numbers.at("loss_sum"), 1.0 / 3);
  EXPECT_TRUE(torch::equal(back.weights[0].second, torch::full({4}, 2.0)));
  EXPECT_EQ(back.optimizer[0].first, "w.square_avg");
  EXPECT_EQ(std::distance(fs::directory_iterator(base_), fs::directory_iterator()), 1)
      << "only last/ remains";
}

// A user's metric may be infinite or NaN, which JSON cannot express.
TEST_F(ResumeFolder, NonFiniteNumbersRoundTrip) {
  const double infinity = std::numeric_limits<double>::infinity();
  TrainingCheckpoint resume = at_step(1);
  resume.state.best_metric = -infinity;
  resume.state.numbers = {{"stop_best", std::nan("")}, {"plateau_best", infinity}};
  write_training_checkpoint(folder_, resume);
  const TrainState back = read_train_state(folder_);
  EXPECT_EQ(back.best_metric, -infinity);
  EXPECT_TRUE(std::isnan(back.numbers.at("stop_best")));
  EXPECT_EQ(back.numbers.at("plateau_best"), infinity);
  EXPECT_EQ(back.numbers.size(), 2u);
}

TEST_F(ResumeFolder, RecoversFromACrashBetweenTheTwoRenames) {
  write_training_checkpoint(folder_, at_step(1));
  fs::rename(folder_, base_ / "last.old");
  fs::create_directories(base_ / "last.tmp");
  EXPECT_EQ(read_training_checkpoint(folder_).state.step, 1);
  write_training_checkpoint(folder_, at_step(2));
  EXPECT_EQ(read_training_checkpoint(folder_).state.step, 2);
}

TEST_F(ResumeFolder, AFullDiskLeavesTheOldCheckpoint) {
  write_training_checkpoint(folder_, at_step(1));
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(write_training_checkpoint(folder_, at_step(2, 100000)), FileError);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(read_training_checkpoint(folder_).state.step, 1);
  EXPECT_FALSE(fs::exists(base_ / "last.tmp"));
}

TEST_F(ResumeFolder, RejectsMissingAndInvalidFolders) {
  EXPECT_THROW(read_training_checkpoint(folder_), FileError);
  const auto damage = [&](const std::string& what, const std::string& by) {
    write_training_checkpoint(folder_, at_step(1));
    std::string index = read_file(folder_ / "index.json");
    const auto at = index.find(what);
    ASSERT_NE(at, std::string::npos) << what;
    index.replace(at, what.size(), by);
    std::ofstream(folder_ / "index.json") << index;
    EXPECT_THROW(read_training_checkpoint(folder_), FormatError) << by;
    EXPECT_THROW(read_train_state(folder_), FormatError) << by;
  };
  damage("\"step\": 1", "\"step\": \"x\"");
  damage("\"step\": 1", "\"step\": 1.5");
  damage("\"step\": 1", "\"step\": -1");
  damage("\"samples\": 24", "\"samples\": -24");
  damage("\"samples\"", "\"places\"");
  damage("\"version\": 2", "\"version\": 9");
  for (const char* numbers : {"5", "[1, 2]", "null", "{\"a\": \"b\"}", "{\"a\": {}}"})
    damage("\"numbers\": ", std::string("\"numbers\": ") + numbers + ", \"more\": ");
  fs::remove(folder_ / "index.json");
  EXPECT_THROW(read_training_checkpoint(folder_), FormatError);
}

// One process reads the checkpoint of two stages on two ranks, and the other way round.
TEST_F(ResumeFolder, AnyNumberOfRanksResumesFromAnyOther) {
  const std::vector<std::string> names = {"first.weight", "first.bias", "last.weight"};
  const auto of = [&](const std::vector<std::string>& owned) {
    TrainingCheckpoint part;
    part.state = at_step(3).state;
    for (const std::string& name : owned) {
      const auto value = name_value(name);
      part.weights.emplace_back(name, torch::full({4}, value));
      part.optimizer.emplace_back(name + ".step", torch::tensor(3));
      part.optimizer.emplace_back(name + ".square_avg", torch::full({4}, value / 2));
      part.gradients.emplace_back(name, torch::full({4}, value / 4));
    }
    return part;
  };
  const auto expect = [&](const std::vector<std::string>& wanted, SurplusTensors others) {
    const SavedTraining saved(folder_);
    EXPECT_EQ(saved.state().samples, 24);
    NamedTensors weights;
    for (const std::string& name : wanted) weights.emplace_back(name, torch::zeros(4));
    saved.copy_weights(weights, others);
    for (const auto& [name, tensor] : weights)
      EXPECT_TRUE(torch::equal(tensor, torch::full({4}, name_value(name)))) << name;
    EXPECT_EQ(saved.optimizer(wanted).size(), 2 * wanted.size());
    for (const auto& [name, tensor] : saved.gradients(wanted))
      EXPECT_TRUE(torch::equal(tensor, torch::full({4}, name_value(name) / 4.0))) << name;
  };
  const auto errors = on_ranks(2, [&](const SaveRanks& ranks) {
    write_training_checkpoint(
        folder_, of(ranks.rank == 0 ? std::vector{names[0], names[1]} : std::vector{names[2]}),
        ranks);
  });
  EXPECT_THAT(errors, testing::Each(""));
  expect(names, SurplusTensors::Refused);
  expect({names[0]}, SurplusTensors::Ignored);
  expect({names[1], names[2]}, SurplusTensors::Ignored);
  EXPECT_EQ(read_training_checkpoint(folder_).optimizer.size(), 6u);
  EXPECT_THROW(expect({names[0]}, SurplusTensors::Refused), FormatError) << "another model";
  EXPECT_THROW(expect({"other"}, SurplusTensors::Ignored), FormatError);

  write_training_checkpoint(folder_, of(names));
  expect({names[2]}, SurplusTensors::Ignored);
  const auto mixed = on_ranks(2, [&](const SaveRanks& ranks) {
    TrainingCheckpoint part = of({names[static_cast<std::size_t>(ranks.rank)]});
    part.state.samples += ranks.rank;
    write_training_checkpoint(folder_, part, ranks);
  });
  EXPECT_THAT(mixed, testing::Each(testing::HasSubstr("sample 24")));
  expect(names, SurplusTensors::Refused);
}

// Written before checkpoints had an index; see tests/golden/checkpoint_version_1/README.md.
TEST_F(ResumeFolder, ReadsAFolderOfVersion1) {
  const fs::path golden = fs::path(TRESTLE_SOURCE_DIR) / "tests/golden/checkpoint_version_1";
  const TrainingCheckpoint old = read_training_checkpoint(golden);
  EXPECT_EQ(old.state.step, 14);
  EXPECT_EQ(old.state.epoch, 2);
  EXPECT_EQ(old.state.batches, 3);
  EXPECT_EQ(old.state.seed, ~std::uint64_t{0});
  EXPECT_EQ(old.state.best_metric, 0.1 + 0.2);
  EXPECT_EQ(old.state.numbers.at("loss_sum"), 1.0 / 3);
  EXPECT_EQ(old.state.numbers.at("plateau_best"), HUGE_VAL);
  ASSERT_EQ(old.weights.size(), 3u);
  EXPECT_EQ(old.weights[0].first, "in.weight");
  EXPECT_TRUE(torch::equal(old.weights[0].second, torch::arange(6, torch::kFloat).view({2, 3})));
  EXPECT_TRUE(torch::equal(old.weights[1].second, torch::tensor({0.5, -1.0}).to(at::kBFloat16)));
  EXPECT_EQ(old.weights[2].second.item<std::int64_t>(), 7);
  EXPECT_EQ(old.optimizer.size(), 2u);
  EXPECT_TRUE(torch::equal(old.gradients[0].second, torch::full({2, 3}, 0.25)));

  fs::copy(golden, folder_);
  EXPECT_EQ(list_weights(folder_).size(), 3u);
  write_training_checkpoint(folder_, at_step(15));
  EXPECT_EQ(read_train_state(folder_).step, 15);
  EXPECT_FALSE(fs::exists(folder_ / "state.json"));
}

}  // namespace
}  // namespace trestle::checkpoint
