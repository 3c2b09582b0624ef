#include "trestle/checkpoint/training_checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/files.h"

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
                  .batch = 2,
                  .seed = ~std::uint64_t{0},
                  .best_epoch = 0,
                  .best_metric = 0.1 + 0.2,
                  .recipe_hash = "abc",
                  .numbers = {{"loss_sum", 1.0 / 3}}};
  return resume;
}

TEST_F(ResumeFolder, ComesBackToTheBit) {
  write_training_checkpoint(folder_, at_step(1));
  write_training_checkpoint(folder_, at_step(2));
  const TrainingCheckpoint back = read_training_checkpoint(folder_);
  EXPECT_EQ(back.state.step, 2);
  EXPECT_EQ(back.state.epoch, 1);
  EXPECT_EQ(back.state.batch, 2);
  EXPECT_EQ(back.state.seed, ~std::uint64_t{0});
  EXPECT_EQ(back.state.best_metric, 0.1 + 0.2);
  EXPECT_EQ(back.state.recipe_hash, "abc");
  EXPECT_EQ(back.state.numbers.at("loss_sum"), 1.0 / 3);
  EXPECT_TRUE(torch::equal(back.weights[0].second, torch::full({4}, 2.0)));
  EXPECT_EQ(back.optimizer[0].first, "w.square_avg");
  EXPECT_EQ(std::distance(fs::directory_iterator(base_), fs::directory_iterator()), 1)
      << "only last/ stays";
}

// A metric of one's own may be; JSON has no word for it.
TEST_F(ResumeFolder, NumbersThatAreNotFiniteComeBack) {
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

TEST_F(ResumeFolder, ACrashBetweenTheTwoRenamesIsFound) {
  write_training_checkpoint(folder_, at_step(1));
  fs::rename(folder_, base_ / "last.old");
  fs::create_directories(base_ / "last.tmp");
  EXPECT_EQ(read_training_checkpoint(folder_).state.step, 1);
  write_training_checkpoint(folder_, at_step(2));
  EXPECT_EQ(read_training_checkpoint(folder_).state.step, 2);
}

TEST_F(ResumeFolder, AFullDiskLeavesTheOlderOne) {
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

TEST_F(ResumeFolder, RefusesWhatIsNotThereOrNotRight) {
  EXPECT_THROW(read_training_checkpoint(folder_), FileError);
  write_training_checkpoint(folder_, at_step(1));
  std::ofstream(folder_ / "state.json") << "{\"format\":1,\"step\":\"x\"}";
  EXPECT_THROW(read_training_checkpoint(folder_), FormatError);
  std::ofstream(folder_ / "state.json") << "{\"format\":9}";
  EXPECT_THROW(read_training_checkpoint(folder_), FormatError);
  write_training_checkpoint(folder_, at_step(1));
  nlohmann::json state = nlohmann::json::parse(read_file(folder_ / "state.json"));
  for (const char* damage : {"5", "[1, 2]", "null"}) {
    state["numbers"] = nlohmann::json::parse(damage);
    std::ofstream(folder_ / "state.json") << state;
    EXPECT_THROW(read_training_checkpoint(folder_), FormatError) << damage;
  }
}

}  // namespace
}  // namespace trestle::checkpoint
