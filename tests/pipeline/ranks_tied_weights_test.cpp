// Weights that layers on different ranks share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/support.h"
#include "tests/pipeline/tied_ranks.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/virtual_device.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/schedule/placement.h"

namespace trestle {
namespace {

using support::over;
using tied::Ties;

TEST(RanksTiedWeights, TrainAsOneTensorInPlainTorch) {
  const support::WatchDog watch("tied weights over ranks");
  for (const Ties ties : {Ties::Head, Ties::Three, Ties::Two, Ties::HeadOwns})
    for (const char* schedule : {"gpipe", "1f1b"})
      for (const Recompute recompute : {Recompute::Never, Recompute::Always})
        for (const int ranks : {2, 3}) {
          const bool adam = recompute == Recompute::Never;
          SCOPED_TRACE(
              text("ties ", static_cast<int>(ties), " ", schedule, " adam ", adam, " on ", ranks));
          const tied::Training training{.ties = ties, .adam = adam, .max_norm = 0.3};
          auto options = tied::options_of(training, tied::cut_for(ranks));
          options.schedule = schedule;
          options.recompute = recompute;
          spawn(ranks, [&](World& world) {
            PipelineOptions own = over(world, options);
            if (ranks == 3)
              own.devices = {virtual_devices(3)[static_cast<std::size_t>(world.rank())]};
            tied::expect_training_over_ranks(world, training, own);
          });
        }
}

TEST(RanksTiedWeights, FollowCallersBackwardAndOptimizer) {
  const support::WatchDog watch("a caller's backward with tied weights");
  for (const Ties ties : {Ties::Head, Ties::Three, Ties::HeadOwns}) {
    const tied::Training training{.ties = ties, .max_norm = 0.3};
    spawn(3, [&](World& world) {
      tied::expect_callers_training_over_ranks(
          world, training, over(world, tied::options_of(training, tied::cut_for(3))));
    });
  }
}

// Owner and copy in two stages of one rank: no message leaves it.
TEST(RanksTiedWeights, SupportTwoStagesPerRank) {
  const support::WatchDog watch("tied stages of one rank");
  const tied::Training training{.ties = Ties::Three, .max_norm = 0.3};
  const auto expected = tied::train_plain(training);
  for (const auto& placing : {std::vector<int>{0, 1, 1, 0}, {0, 1, 0, 1}}) {
    auto options = tied::options_of(training, {2, 1, 1, 2});
    options.plan.table = schedule::place(
        schedule::generate("gpipe", {.stages = 4, .micro_batches = options.micro_batches}), placing,
        2);
    Pipeline alone(tied::make_net(Ties::Three), options);
    tied::expect_same(expected, tied::train(alone, training));
    spawn(2, [&](World& world) {
      Pipeline pipeline(tied::make_net(Ties::Three), over(world, options));
      tied::expect_same(expected, tied::train(pipeline, training));
    });
  }
}

// The copy's rank alone sees the infinity.
TEST(RanksTiedWeights, SkipAStepThatOverflows) {
  const support::WatchDog watch("an overflow with tied weights");
  const tied::Training training{.max_norm = 0.3};
  const auto expected = tied::train_plain(training, 8, /*skipped=*/1);
  spawn(2, [&](World& world) {
    Pipeline pipeline(tied::make_net(), over(world, tied::options_of(training, {3, 3})));
    precision::GradientScaler scaler({.initial_scale = 1024});
    for (int step = 0; step < training.steps; ++step) {
      nn::Loss loss = nn::token_cross_entropy();
      if (step == 1)
        loss.value = [](const at::Tensor& x, const at::Tensor&) { return x.sum() * 1e308; };
      const auto result =
          pipeline.step(tied::ids(step), tied::next_ids(step), loss, {.scaler = &scaler});
      EXPECT_EQ(result.stepped, step != 1);
    }
    tied::expect_near(expected.weights, tied::copy_of(pipeline.named_parameters()), 1e-10);
  });
}

// A rank that was frozen or whose weights were loaded reports it with the value.
TEST(RanksTiedWeights, FollowTheOwnersRank) {
  const support::WatchDog watch("a frozen and a loaded owner");
  const tied::Training training{.ties = Ties::Three, .trains_table = false};
  const auto expected = tied::train_plain(training);
  tied::PlainModel plain(Ties::Head);
  const at::Tensor values = at::randn({tied::words, tied::width}, at::kDouble);
  const at::NoGradGuard no_grad;
  plain["embed.weight"].copy_(values);
  const at::Tensor scores = plain.scores(tied::ids(0));
  spawn(3, [&](World& world) {
    Pipeline pipeline(tied::make_net(Ties::Three),
                      over(world, tied::options_of(training, tied::cut_for(3))));
    tied::expect_same(expected, tied::train(pipeline, training));
  });
  spawn(2, [&](World& world) {
    Pipeline pipeline(tied::make_net(), over(world, tied::options_of(training, {3, 3})));
    pipeline.evaluate(tied::ids(0));
    const at::NoGradGuard no_gradients;
    if (world.rank() == 0) pipeline.parameters()[0].copy_(values);
    const at::Tensor own = pipeline.evaluate(tied::ids(0));
    if (!own.defined()) return;
    EXPECT_TRUE(at::allclose(own, scores, 1e-10, 1e-12));
  });
}

}  // namespace
}  // namespace trestle
