// Weights that stages share, in replicated and sharded pipelines, compared with plain torch.
#include <gmock/gmock.h>

#include "tests/pipeline/support.h"
#include "tests/pipeline/tied_training.h"
#include "tests/support/message_of.h"
#include "tests/support/virtual_environment.h"
#include "trestle/base/error.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/sharding/sharded_parameters.h"

namespace trestle {
namespace {

using tied::Ties;

struct TiedMesh {
  int pipeline, replicate, shard;
  ShardLevel level;
  std::string schedule = "gpipe";
  tied::Training training = {};
  StageUnits units = StageUnits::Layers;
  Recompute recompute = Recompute::Never;
  int stages = 1;  // of a process with its own pipeline, each on a virtual device
};

class TiedMeshes : public ::testing::TestWithParam<TiedMesh> {};

Parallel make_tied(World& world, const TiedMesh& given) {
  const DeviceMesh mesh(
      world,
      {{"pipeline", given.pipeline}, {"replicate", given.replicate}, {"shard", given.shard}});
  const int stages = given.pipeline * given.stages;
  ParallelOptions options{
      .level = given.level,
      .stage_units = given.units,
      .options = tied::options_of(given.training, stages == 2   ? std::vector{3, 3}
                                                  : stages == 3 ? std::vector{2, 2, 2}
                                                                : std::vector{6})};
  options.options.micro_batches = 2;
  options.options.schedule = given.schedule;
  options.options.recompute = given.recompute;
  if (given.stages > 1) {
    const auto all = virtual_devices(given.stages * world.size());
    const auto own = all.begin() + std::ptrdiff_t{given.stages} * world.rank();
    options.options.devices = {own, own + given.stages};
  }
  return {tied::make_net(given.training.ties), mesh, options};
}

// The weights of this rank's stages, and how many there are.
std::size_t expect_tied_weights(Parallel& parallel, const tied::Weights& expected) {
  std::size_t count = 0;
  for (int stage = 0; stage < parallel.pipeline().stage_count(); ++stage) {
    if (!parallel.pipeline().has_stage(stage)) continue;
    for (const auto& [name, tensor] : parallel.sharded(stage)->state()) {
      EXPECT_LT((tensor - expected.at(name)).abs().max().item<double>(), 1e-11) << name;
      ++count;
    }
  }
  return count;
}

// In the second step one replica's loss overflows: all replicas skip that step.
TEST_P(TiedMeshes, TrainAsOneTensorInPlainTorch) {
  const TiedMesh given = GetParam();
  constexpr int left_out = 1;
  const int ranks = given.pipeline * given.replicate * given.shard;
  if (given.stages > 1) virtual_devices(given.stages * ranks);  // before the first backward
  const tied::Outcome expected = tied::train_plain(given.training, 8, left_out);
  spawn(ranks, [&](World& world) {
    Parallel parallel = make_tied(world, given);
    precision::GradientScaler scaler({.initial_scale = 256});
    const std::int64_t count = 8 / parallel.replicas(), begin = count * parallel.replica();
    tied::Outcome own;
    for (int step = 0; step < given.training.steps; ++step) {
      nn::Loss loss = nn::token_cross_entropy();
      if (step == left_out && parallel.replica() == parallel.replicas() - 1)
        loss.value = [](const at::Tensor& x, const at::Tensor&) { return x.sum() * 1e308; };
      const auto result =
          parallel.step(tied::ids(step).narrow(0, begin, count),
                        tied::next_ids(step).narrow(0, begin, count), loss, {.scaler = &scaler});
      EXPECT_EQ(result.stepped, step != left_out);
      for (const auto& tensor : parallel.parameters()) EXPECT_FALSE(tensor.grad().defined());
      if (step == left_out) continue;
      own.losses.push_back(result.loss);
      own.norms.push_back(result.gradient_norm.value_or(-1));
    }
    tied::expect_same(expected, own);
    at::Tensor weights =
        at::tensor({static_cast<std::int64_t>(expect_tied_weights(parallel, expected.weights))});
    world.group().all_reduce(weights).wait();
    EXPECT_EQ(weights.item<std::int64_t>(),
              static_cast<std::int64_t>(expected.weights.size()) * parallel.replicas());
    const at::Tensor scores = parallel.evaluate(tied::ids(0));
    tied::PlainModel plain(given.training.ties);
    for (const auto& [name, tensor] : plain.named()) {
      const at::NoGradGuard no_grad;
      at::Tensor(tensor).copy_(expected.weights.at(name));
    }
    if (!scores.defined()) return;
    EXPECT_TRUE(at::allclose(scores.cpu(), plain.scores(tied::ids(0)), 1e-10, 1e-10));
  });
}

constexpr auto always = Recompute::Always;

INSTANTIATE_TEST_SUITE_P(
    Meshes, TiedMeshes,
    ::testing::Values(
        TiedMesh{2, 2, 1, ShardLevel::None, "1f1b", {.max_norm = 0.3}},
        TiedMesh{2, 2, 1, ShardLevel::None, "zb_h1", {.max_norm = 0.3}},
        TiedMesh{2, 1, 2, ShardLevel::Gradients, "zb_h1", {.ties = Ties::Two, .max_norm = 0.3}},
        TiedMesh{2, 1, 2, ShardLevel::Parameters, "zb_h1", {.max_norm = 0.3}},
        TiedMesh{3, 2, 1, ShardLevel::None, "gpipe", {.ties = Ties::Three, .adam = false}},
        TiedMesh{
            2, 1, 2, ShardLevel::OptimizerState, "gpipe", {.ties = Ties::Two, .max_norm = 0.3}},
        TiedMesh{2, 1, 2, ShardLevel::Gradients, "1f1b", {.adam = false, .max_norm = 0.3}},
        TiedMesh{2, 1, 2, ShardLevel::Parameters, "1f1b", {.max_norm = 0.3}},
        TiedMesh{3,
                 1,
                 2,
                 ShardLevel::Parameters,
                 "gpipe",
                 {.ties = Ties::Three, .max_norm = 0.3},
                 StageUnits::Layers,
                 always},
        TiedMesh{2,
                 1,
                 2,
                 ShardLevel::Parameters,
                 "gpipe",
                 {.ties = Ties::Three, .max_norm = 0.3},
                 StageUnits::Stage,
                 always},
        TiedMesh{2, 2, 2, ShardLevel::Parameters, "1f1b", {.ties = Ties::Two, .max_norm = 0.3}},
        TiedMesh{1,
                 1,
                 2,
                 ShardLevel::Parameters,
                 "1f1b",
                 {.ties = Ties::Three, .max_norm = 0.3},
                 StageUnits::Layers,
                 Recompute::Never,
                 3},
        TiedMesh{1,
                 2,
                 1,
                 ShardLevel::None,
                 "1f1b",
                 {.ties = Ties::Three, .max_norm = 0.3},
                 StageUnits::Layers,
                 always,
                 3}));

TEST(TiedParallel, UpdateOnceAfterAccumulatedSteps) {
  for (const ShardLevel level : {ShardLevel::None, ShardLevel::Gradients, ShardLevel::Parameters}) {
    const TiedMesh given{
        2,       level == ShardLevel::None ? 2 : 1,     level == ShardLevel::None ? 1 : 2, level,
        "gpipe", {.ties = Ties::Three, .max_norm = 0.3}};
    const auto expected = tied::train_plain(given.training);
    spawn(4, [&](World& world) {
      Parallel parallel = make_tied(world, given);
      for (int step = 0; step < given.training.steps; ++step) {
        StepResult result;
        for (int half = 0; half < 2; ++half) {
          const std::int64_t begin = 4 * half + 2 * parallel.replica();
          result = parallel.step(
              tied::ids(step).narrow(0, begin, 2), tied::next_ids(step).narrow(0, begin, 2),
              nn::token_cross_entropy(),
              {.gradient_scale = 0.5,
               .first_micro_batch = half * result.micro_batches,
               .update = half == 0 ? StepOptions::Update::Later : StepOptions::Update::Now});
        }
        EXPECT_NEAR(result.gradient_norm.value(), expected.norms[static_cast<std::size_t>(step)],
                    1e-11);
      }
      expect_tied_weights(parallel, expected.weights);
    });
  }
}

// An optimizer of parallel.parameters(), and the caller's clipping.
TEST(TiedParallel, FollowCallersOptimizer) {
  for (const ShardLevel level : {ShardLevel::None, ShardLevel::Gradients, ShardLevel::Parameters}) {
    TiedMesh given{
        2,      level == ShardLevel::None ? 2 : 1, level == ShardLevel::None ? 1 : 2, level,
        "1f1b", {.adam = false, .max_norm = 0.3}};
    const auto expected = tied::train_plain(given.training);
    spawn(4, [&](World& world) {
      const DeviceMesh mesh(
          world, {{"pipeline", 2}, {"replicate", given.replicate}, {"shard", given.shard}});
      Parallel parallel(tied::make_net(), mesh,
                        {.level = level, .options = {.balance = {3, 3}, .micro_batches = 2}});
      const auto optimizer = tied::make_optimizer(given.training, parallel.parameters());
      for (int step = 0; step < given.training.steps; ++step) {
        optimizer->zero_grad();
        parallel.step(tied::ids(step).narrow(0, 4 * parallel.replica(), 4),
                      tied::next_ids(step).narrow(0, 4 * parallel.replica(), 4),
                      nn::token_cross_entropy());
        EXPECT_NEAR(parallel.clip_grad_norm(0.3), expected.norms[static_cast<std::size_t>(step)],
                    1e-11);
        optimizer->step();
      }
      expect_tied_weights(parallel, expected.weights);
    });
  }
}

// A rank may hear of another rank's error before it throws its own.
TEST(TiedParallel, RefuseAnOwnerInALaterStage) {
  spawn(4, [&](World& world) {
    const TiedMesh given{2, 2, 1, ShardLevel::None, "gpipe", {.ties = Ties::HeadOwns}};
    EXPECT_THAT(support::message_of<Error>([&] { make_tied(world, given); }),
                ::testing::AllOf(::testing::HasSubstr("'embed.weight' of stage 0 is tied to"),
                                 ::testing::HasSubstr("'head.weight' of the later stage 1"),
                                 ::testing::HasSubstr("tie(\"head.weight\", \"embed.weight\")")));
  });
}

// The last stage has a copy of a weight of stage 6. Its last W follows work that needs the owner's
// rank, and replicas reduce the owner's gradients before that.
TEST(TiedReplicas, RefuseATableInWhichRanksWouldWaitForEachOther) {
  const support::WatchDog watch("ties that replicas cannot reduce");
  spawn(6, [](World& world) {
    const DeviceMesh mesh(world, {{"pipeline", 3}, {"replicate", 2}, {"shard", 1}});
    nn::Layers net(nn::Seed{5});
    for (int i = 0; i < 9; ++i) net.add(text("l", i), tied::linear(4, 4, true));
    net.tie("l8.weight", "l6.weight");
    const auto refusal = [&](int micro_batches) {
      Parallel parallel(net, mesh,
                        {.options = {.balance = std::vector<int>(9, 1),
                                     .micro_batches = micro_batches,
                                     .schedule = "interleaved_zero_bubble",
                                     .stages_per_rank = 3,
                                     .deadline = std::chrono::seconds(30)}});
      const at::Tensor rows = torch::ones({6, 4}, torch::kDouble);
      parallel.step(rows, rows, nn::mean_squared_error());
    };
    EXPECT_THAT(support::message_of<UsageError>([&] { refusal(1); }),
                testing::HasSubstr("gradient of a tied parameter before its copies"));
    EXPECT_NO_THROW(refusal(3));
  });
}

}  // namespace
}  // namespace trestle
