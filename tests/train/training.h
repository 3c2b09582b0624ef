#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/train/progress/progress.h"
#include "trestle/train/run_folder/run_folder.h"
#include "trestle/train/trainer.h"

// A small model and small data for tests of whole runs.
namespace trestle::train {

namespace fs = std::filesystem;

// Convolution, batch statistics, dropout and a skip, so that any error in resuming changes the
// results.
inline nn::Layers make_mine(const models::ModelOptions& options) {
  nn::Layers net(nn::Seed{options.seed});
  net.add("in",
          [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).stride(2).padding(1)); })
      .keep_output("skip");
  net.add("norm", torch::nn::BatchNorm2d(4));
  net.add("drop", torch::nn::Dropout(0.3));
  net.add("add", [](at::Tensor x, at::Tensor skip) { return (x + skip).relu().flatten(1); })
      .take("skip");
  net.add("out", [] { return torch::nn::Linear(4 * 14 * 14, 10); });
  return net;
}

// Collects the notes; does nothing at the rest.
struct Notes : Progress {
  std::string lines;
  void note(const std::string& line) override { lines += line + "\n"; }
  void plan(const RunPlan&) override {}
  void step(const StepReport&) override {}
  void epoch(const EpochReport&) override {}
  void done(const TrainResult&) override {}
};

class Training : public ::testing::Test {
 protected:
  using Changes = std::vector<std::pair<std::string, std::string>>;

  static void SetUpTestSuite() {
    base_ = fs::path(TRESTLE_BINARY_DIR) / "scratch" / text("training_", getpid());
    fs::remove_all(base_);
    data::synthesize_mnist(base_ / "mnist", 40, {.test_count = 20, .seed = 42, .progress = {}});
  }
  static void TearDownTestSuite() { fs::remove_all(base_); }

  static recipe::Recipe recipe() {
    recipe::Recipe recipe;
    recipe.name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::ranges::replace(recipe.name, '/', '_');  // of a parameterized test
    recipe.model.name = "mine";
    recipe.data.name = "mnist";
    recipe.data.folder = (base_ / "mnist").string();
    recipe.devices.use = "virtual:2";
    recipe.pipeline.balance = {2, 3};
    recipe.pipeline.micro_batches = 2;
    recipe.pipeline.recompute = {"except_last"};
    recipe.optimizer.learning_rate = 0.01;
    recipe.train.epochs = 2;
    recipe.train.batch = 12;
    recipe.train.runs = (base_ / "runs").string();
    return recipe;
  }

  // One thread: bits must not depend on the number of threads per operator.
  static recipe::Recipe on_cpu(std::vector<std::int64_t> balance = {2, 3}) {
    recipe::Recipe one = recipe();
    one.devices.use = "cpu";
    one.devices.threads = 1;
    one.pipeline.balance = std::move(balance);
    return one;
  }

  static TrainHooks hooks(std::int64_t stop_after_steps = 0) {
    TrainHooks hooks;
    hooks.models = {{"mine", make_mine}};
    hooks.stop_after_steps = stop_after_steps;
    return hooks;
  }

  // Trains on `ranks` thread ranks; resumes the run `resumed` if given.
  static TrainResult on_ranks(int ranks, const recipe::Recipe& recipe, TrainHooks own = hooks(),
                              const fs::path& resumed = {}, const Changes& changes = {}) {
    return spawn(ranks,
                 [&](World& world) {
                   TrainHooks rank_hooks = own;
                   rank_hooks.world = &world;
                   return resumed.empty() ? train(recipe, rank_hooks)
                                          : resume(resumed, changes, rank_hooks);
                 },
                 {.deadline = std::chrono::seconds(30)})
        .at(0);
  }

  // The tensors of a weights file or of a checkpoint.
  static std::map<std::string, at::Tensor> tensors(const fs::path& file) {
    const auto read = checkpoint::read_weights(file).tensors;
    return {read.begin(), read.end()};
  }

  static void expect_same(const fs::path& expected, const fs::path& actual) {
    const auto a = tensors(expected), b = tensors(actual);
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
  static void expect_close(const fs::path& expected, const fs::path& actual) {
    const auto a = tensors(expected), b = tensors(actual);
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, tensor] : a)
      EXPECT_TRUE(at::allclose(tensor, b.at(name), 1e-4, 1e-6)) << name;
  }

  // metrics.jsonl without times and memory.
  static std::string metrics(const fs::path& run) {
    std::string kept;
    for (const std::string& line : split(read_file(run / "metrics.jsonl"), '\n'))
      kept += line.substr(0, std::min(line.find(",\"examples_per_second\""),
                                      line.find(",\"peak_bytes\""))) +
              "\n";
    return kept;
  }

  // The lines of metrics.jsonl with this key.
  static std::vector<nlohmann::json> lines(const fs::path& run, const char* key) {
    std::vector<nlohmann::json> result;
    for (const std::string& line : split(read_file(run / "metrics.jsonl"), '\n')) {
      if (line.empty()) continue;
      auto parsed = nlohmann::json::parse(line);
      if (parsed.contains(key)) result.push_back(std::move(parsed));
    }
    return result;
  }
  static std::vector<nlohmann::json> steps(const fs::path& run) {
    return lines(run, "gradient_norm");
  }

  inline static fs::path base_;
};

}  // namespace trestle::train
