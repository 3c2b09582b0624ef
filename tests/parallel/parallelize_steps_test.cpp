// Optimizer steps of replicated and sharded pipelines, compared with a training by libtorch alone.
#include <gmock/gmock.h>

#include "tests/pipeline/plain_training.h"
#include "tests/support/virtual_environment.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/sharding/sharded.h"
#include "trestle/sharding/sharded_parameters.h"

namespace trestle {
namespace {

using plain::Training;

struct Mesh {
  int pipeline, replicate, shard;
  ShardLevel level;
  std::string schedule = "gpipe";
  Training training = {};
  int stages = 1;  // of a process with its own pipeline, each on a virtual device
};

class MeshSteps : public ::testing::TestWithParam<Mesh> {};

Parallel make(World& world, const Mesh& given) {
  const DeviceMesh mesh(
      world,
      {{"pipeline", given.pipeline}, {"replicate", given.replicate}, {"shard", given.shard}});
  ParallelOptions options{.level = given.level, .options = plain::options_of(given.training)};
  options.options.micro_batches = 2;
  options.options.schedule = given.schedule;
  const bool whole = given.pipeline * given.stages == 1;
  options.options.balance = whole ? std::vector<int>{} : std::vector{3, 2};
  if (given.stages > 1) {
    const auto all = virtual_devices(given.stages * world.size());
    const auto own = all.begin() + std::ptrdiff_t{given.stages} * world.rank();
    options.options.devices = {own, own + given.stages};
  }
  return {plain::make_net(), mesh, options};
}

void expect_weights(Parallel& parallel, const plain::Weights& expected) {
  for (int stage = 0; stage < parallel.pipeline().stage_count(); ++stage) {
    if (!parallel.pipeline().has_stage(stage)) continue;
    for (const auto& [name, tensor] : parallel.sharded(stage)->state())
      EXPECT_LT((tensor - expected.at(name)).abs().max().item<double>(), 1e-11) << name;
  }
}

// In the second step one replica's target has an infinity: all replicas skip that step.
TEST_P(MeshSteps, TrainAsLibtorch) {
  const Mesh given = GetParam();
  constexpr int left_out = 1;
  const int ranks = given.pipeline * given.replicate * given.shard;
  if (given.stages > 1) virtual_devices(given.stages * ranks);  // before the first backward
  const plain::Outcome expected = plain::train(given.training, 8, left_out);
  spawn(ranks, [&](World& world) {
    Parallel parallel = make(world, given);
    Pipeline& pipeline = parallel.pipeline();
    precision::GradientScaler scaler({.initial_scale = 256});
    const std::int64_t count = 8 / parallel.replicas(), begin = count * parallel.replica();
    plain::Outcome own;
    for (int step = 0; step < given.training.steps; ++step) {
      for (int stage = 0; stage < pipeline.stage_count(); ++stage)
        if (pipeline.has_stage(stage))
          optim::set_learning_rate(*pipeline.optimizer(stage),
                                   plain::rate_of(given.training, step));
      at::Tensor y = plain::target(step).narrow(0, begin, count);
      if (step == left_out && parallel.replica() == parallel.replicas() - 1)
        y[0][0] = std::numeric_limits<double>::infinity();
      const auto result = parallel.step(plain::input(step).narrow(0, begin, count), y,
                                        nn::mean_squared_error(), {.scaler = &scaler});
      EXPECT_EQ(result.stepped, step != left_out);
      for (const auto& tensor : parallel.parameters()) EXPECT_FALSE(tensor.grad().defined());
      if (step == left_out) continue;
      own.losses.push_back(result.loss);
      own.norms.push_back(result.gradient_norm.value_or(-1));
    }
    EXPECT_EQ(scaler.scale(), 128);
    plain::expect_same(expected, own);
    expect_weights(parallel, expected.weights);
  });
}

constexpr double infinity = std::numeric_limits<double>::infinity();

INSTANTIATE_TEST_SUITE_P(
    Meshes, MeshSteps,
    ::testing::Values(
        Mesh{2, 2, 1, ShardLevel::None, "1f1b", {.max_norm = 0.2}}, Mesh{1, 2, 1, ShardLevel::None},
        Mesh{2, 1, 2, ShardLevel::OptimizerState, "gpipe", {.adam = false, .max_norm = 0.1}},
        Mesh{1, 2, 2, ShardLevel::Gradients, "gpipe", {.max_norm = 0.1, .p = infinity}},
        Mesh{2, 1, 2, ShardLevel::Parameters, "1f1b", {.max_norm = 0.2}},
        Mesh{2, 2, 2, ShardLevel::Parameters, "gpipe", {.adam = false, .max_norm = 0.1, .p = 3}},
        Mesh{1, 1, 2, ShardLevel::Parameters, "1f1b", {.max_norm = 0.2}, 2}),
    [](const auto& info) {
      const Mesh& mesh = info.param;
      return std::to_string(mesh.pipeline) + "x" + std::to_string(mesh.replicate) + "x" +
             std::to_string(mesh.shard) + "_" + std::string(to_string(mesh.level)) +
             (mesh.stages == 1 ? "" : "_" + std::to_string(mesh.stages) + "stages");
    });

TEST(ParallelizeSteps, OnlyLastAccumulatedStepUpdatesWeights) {
  for (const ShardLevel level : {ShardLevel::None, ShardLevel::Parameters}) {
    const Mesh given{
        2,       level == ShardLevel::None ? 2 : 1, level == ShardLevel::None ? 1 : 2, level,
        "gpipe", {.max_norm = 0.2, .steps = 2}};
    const plain::Outcome expected = plain::train(given.training);
    spawn(4, [&](World& world) {
      Parallel parallel = make(world, given);
      plain::Outcome own;
      for (int step = 0; step < given.training.steps; ++step) {
        StepResult result;
        for (int half = 0; half < 2; ++half) {
          const std::int64_t begin = 4 * half + 2 * parallel.replica();
          result = parallel.step(
              plain::input(step).narrow(0, begin, 2), plain::target(step).narrow(0, begin, 2),
              nn::mean_squared_error(),
              {.gradient_scale = 0.5,
               .first_micro_batch = half * result.micro_batches,
               .update = half == 0 ? StepOptions::Update::Later : StepOptions::Update::Now});
        }
        EXPECT_TRUE(result.stepped);
        EXPECT_NEAR(result.gradient_norm.value(), expected.norms[static_cast<std::size_t>(step)],
                    1e-11);
      }
      expect_weights(parallel, expected.weights);
    });
  }
}

}  // namespace
}  // namespace trestle
