// The levels on processes, which talk by Gloo.
#include <gtest/gtest.h>

#include "attack.h"
#include "plain_net.h"
#include "tests/support/run_ranks.h"
#include "trestle/base/error.h"

namespace trestle {
namespace {

TEST(ShardedProcesses, TrainToThePlainModelsWeights) {
  testing::run_process_ranks(2, [](World& world) {
    for (const ShardLevel level : {ShardLevel::None, ShardLevel::OptimizerState,
                                   ShardLevel::Gradients, ShardLevel::Parameters}) {
      const DeviceMesh mesh(world, {{"shard", 2}});
      EXPECT_LT(testing::sharded_training(world, mesh,
                                          {.level = level, .bucket = 2048, .first_bucket = 512}),
                1e-12)
          << to_string(level);
    }
  });
}

TEST(ShardedProcesses, TwoByTwo) {
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

TEST(ShardedProcesses, OddStepsAndFailures) {
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
                         {.level = ShardLevel::Gradients, .bucket = 100 + world.rank()}),
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

TEST(AdHoc, OneRankEvaluates) {
  testing::run_process_ranks(
      2,
      [](World& world) {
        const DeviceMesh mesh(world, {{"shard", 2}});
        for (const ShardLevel level : {ShardLevel::Parameters}) {
          ShardedModule<testing::Model> model(testing::make<Small>(), mesh, {.level = level});
          try {
            for (int step = 0; step < 4; ++step) {
              model.backward(model.forward(testing::rows(2, 3)).sum());
              if (step == 2 && world.rank() == 0) {
                const at::NoGradGuard no_grad;
                model.forward(testing::rows(2, 3));
              }
            }
            ADD_FAILURE() << "none";
          } catch (const std::exception& e) {
            std::fprintf(stderr, "ADHOC %d: %s\n", world.rank(), e.what());
          }
        }
      },
      std::chrono::seconds(4));
}

}  // namespace
}  // namespace trestle
