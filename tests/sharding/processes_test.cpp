// Every level on processes with Gloo, and the checkpoint that is left when a rank is killed during
// a save.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>

#include "tests/sharding/attack.h"
#include "tests/sharding/drawing_net.h"
#include "tests/sharding/plain_net.h"
#include "tests/support/run_ranks.h"
#include "trestle/base/error.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/optim/factory.h"
#include "trestle/sharding/hooks/powersgd.h"
#include "trestle/sharding/join.h"
#include "trestle/sharding/save/background_save.h"
#include "trestle/sharding/save/save.h"

namespace {
std::atomic<bool> dies_at_flush = false;
}

// In place of the C library's: every save flushes its files before the ranks rename their folder.
extern "C" int fsync(int file) {
  if (dies_at_flush) kill(getpid(), SIGKILL);
  return static_cast<int>(syscall(SYS_fsync, file));
}

namespace trestle {
namespace {

TEST(ShardedProcesses, TrainToPlainModelsWeights) {
  testing::run_process_ranks(2, [](World& world) {
    for (const ShardLevel level : {ShardLevel::None, ShardLevel::OptimizerState,
                                   ShardLevel::Gradients, ShardLevel::Parameters}) {
      const DeviceMesh mesh(world, {{"shard", 2}});
      EXPECT_LT(testing::sharded_training(
                    world, mesh, {.level = level, .buckets = {.size = 2048, .first = 512}}),
                1e-12)
          << to_string(level);
    }
  });
}

TEST(ShardedProcesses, TrainOnTwoByTwoMesh) {
  testing::run_process_ranks(4, [](World& world) {
    const DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 2}});
    for (const ShardLevel level : {ShardLevel::None, ShardLevel::Gradients, ShardLevel::Parameters})
      EXPECT_LT(testing::sharded_training(world, mesh, {.level = level}), 1e-12)
          << to_string(level);
  });
}

struct Small : testing::Model {
  Small() {
    fc = register_module("fc", torch::nn::Linear(testing::width, 3));
    to(at::kDouble);
    phase = register_parameter("phase", at::randn({3}, at::kComplexDouble));
  }
  at::Tensor forward(const at::Tensor& x) override {
    return (fc(x) * phase).abs().relu_() * at::view_as_real(phase).sum();
  }
  torch::nn::Linear fc{nullptr};
  at::Tensor phase;
};

TEST(ShardedProcesses, RunUnusualStepsAndReportFailures) {
  testing::run_process_ranks(3, [](World& world) {
    const testing::Trial trial{
        .model = testing::make<Small>,
        .ranks = 3,
        .after_backward = [](int, const testing::Call& call) { call(testing::rows(2, 9)); }};
    const auto expected = testing::plainly(trial);
    for (const ShardLevel level : testing::levels) {
      const auto weights = testing::sharded(trial, world, level);
      EXPECT_LT(testing::distance(expected, NamedTensors(weights.begin(), weights.end())), 1e-12)
          << to_string(level);
    }
    const DeviceMesh mesh(world, {{"shard", 3}});
    EXPECT_THROW(Sharded(testing::make<Small>(), mesh,
                         {.level = ShardLevel::Gradients, .buckets = {.size = 100 + world.rank()}}),
                 UsageError);
    ShardedModule<testing::Model> model(testing::make<Small>(), mesh,
                                        {.level = ShardLevel::Parameters});
    const at::Tensor y = model.forward(testing::rows(2, 3));
    if (world.rank() == 1)
      model->parameters()[0].register_hook(
          [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("boom"); });
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_ANY_THROW(y.sum().backward());
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  });
}

// Rank 0 has no batches. At level None, PowerSGD compresses with a rank high enough to be lossless.
TEST(ShardedProcesses, TrainWithJoinAndPowerSgd) {
  const testing::Trial trial{.model = testing::make<testing::TwoLinears>, .ranks = 1, .steps = 4};
  testing::run_process_ranks(2, [&](World& world) {
    const auto expected = testing::plainly(trial);
    for (const ShardLevel level : testing::levels) {
      ShardOptions options{.level = level, .buckets = {.size = 256, .first = 128}};
      if (level == ShardLevel::None)
        options.buckets.hook = sharding::powersgd_hook(
            {.approximation_rank = 7, .start_iteration = 2, .min_compression_rate = 1e-3});
      ShardedModule<testing::Model> model(trial.model(), DeviceMesh(world, {{"shard", 2}}),
                                          options);
      const auto optimizer = trial.optimizer(model.parameters());
      const auto batches = [&] {
        for (int step = 0; step < trial.steps * world.rank(); ++step) {
          optimizer->zero_grad();
          model.backward(model.forward(testing::input_of(trial, step)).square().mean(), 2);
          optimizer->step();
        }
      };
      join({&model}, batches, {.after_backward = [&] { optimizer->step(); }});
      EXPECT_LT(testing::distance(expected, model.state()), 1e-8) << to_string(level);
    }
  });
}

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int wide = 60'000;  // so large that a file passes the limit below
const ShardOptions fsdp_options{.level = ShardLevel::Parameters, .seed = 4};

void save_until_killed(World& world, const fs::path& last) {
  const DeviceMesh mesh(world, {{"shard", 2}});
  Sharded sharded(testing::drawing_net(wide), mesh, fsdp_options);
  const auto optimizer = optim::make_optimizer(sharded.parameters(), {.name = "adam"});
  for (int step = 0; step < 2; ++step) testing::draw_and_step(sharded, *optimizer, world, step);
  BackgroundSave saving(mesh, sharded);
  saving.save(last, sharded, *optimizer, {.step = 2});
  for (int step = 2; step < 4; ++step) testing::draw_and_step(sharded, *optimizer, world, step);
  saving.wait();
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  if (world.rank() == 1) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{1 << 16, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  try {
    save(last, sharded, *optimizer, {.step = 4});
    ADD_FAILURE() << "no error";
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 of 2"), HasSubstr("File too large")));
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(checkpoint::read_train_state(last).step, 2);
  world.group().barrier();
  dies_at_flush = world.rank() == 1;
  save(last, sharded, *optimizer, {.step = 4});
}

// Resuming gives the bits of an uninterrupted training.
TEST(SavedShardedProcesses, KeepPreviousCheckpointAfterFullDiskAndKilledRank) {
  const fs::path folder =
      fs::path(TRESTLE_BINARY_DIR) / "scratch" / "sharding_a_full_disk_and_a_killed_rank";
  const auto ranks = testing::run_rank_processes(2, [&] {
    World world = init({.deadline = std::chrono::seconds(20)});
    if (world.rank() == 0) {
      fs::remove_all(folder);
      fs::create_directories(folder);
    }
    world.group().barrier();
    save_until_killed(world, folder / "last");
  });
  EXPECT_EQ(ranks[1].signal, SIGKILL) << ranks[1].output;
  EXPECT_EQ(ranks[0].exit_code, 3) << ranks[0].output;
  EXPECT_THAT(ranks[0].output, AllOf(HasSubstr("rank 1"), ::testing::Not(HasSubstr("Failure"))));
  EXPECT_FALSE(fs::exists(folder / "last.tmp"))
      << "the surviving rank removes the partial checkpoint";
  spawn(2,
        [&](World& world) {
          const DeviceMesh mesh(world, {{"shard", 2}});
          const auto train = [&](const fs::path& from) {
            Sharded sharded(testing::drawing_net(wide), mesh, fsdp_options);
            const auto optimizer = optim::make_optimizer(sharded.parameters(), {.name = "adam"});
            int step = 0;
            if (!from.empty()) step = static_cast<int>(load(from, sharded, *optimizer).step);
            EXPECT_EQ(step, from.empty() ? 0 : 2);
            for (; step < 4; ++step) testing::draw_and_step(sharded, *optimizer, world, step);
            return sharded.state();
          };
          EXPECT_TRUE(testing::same_bits(train(folder / "last"), train({})));
        },
        {.threads = 1});
  fs::remove_all(folder);
}

}  // namespace
}  // namespace trestle
