// Optimizer steps of a pipeline over ranks give the bits of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/over_ranks.h"
#include "tests/pipeline/plain_training.h"
#include "tests/pipeline/support.h"
#include "trestle/base/error.h"
#include "trestle/comm/rank_error.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/virtual_device.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/schedule/placement.h"

namespace trestle {
namespace {

using plain::Training;
using support::is_last;
using support::messages_of_ranks;
using support::over;
using ::testing::HasSubstr;

TEST(RanksOptimizer, TrainsToBitsOfOneProcess) {
  const support::WatchDog watch("optimizer steps over ranks");
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    const Training training{.adam = schedule == "gpipe", .max_norm = 0.2};
    PipelineOptions options = plain::options_of(training);
    options.schedule = schedule;
    Pipeline alone(plain::make_net(), options);
    const plain::Outcome expected = plain::train(alone, training);
    plain::expect_same(plain::train(training), expected);
    spawn(4, [&](World& world) {
      PipelineOptions own = over(world, options);
      if (schedule == "gpipe")
        own.devices = {virtual_devices(4)[static_cast<std::size_t>(world.rank())]};
      Pipeline pipeline(plain::make_net(), own);
      const auto outcome = plain::train(pipeline, training, world.rank() == 0, is_last(world));
      plain::expect_same(expected, outcome, 1e-300);
      const auto timeline = pipeline.gather_timeline();
      for (const auto kind : {schedule::Kind::Norm, schedule::Kind::Step})
        EXPECT_EQ(std::count_if(timeline.events.begin(), timeline.events.end(),
                                [&](const auto& event) { return event.action.kind == kind; }),
                  4);
      EXPECT_THROW(pipeline.optimizer((world.rank() + 1) % 4), StateError);
    });
  }
}

TEST(RanksOptimizer, SupportsTwoStagesPerRank) {
  const support::WatchDog watch("optimizer steps of two stages a rank");
  const Training training{.adam = false, .max_norm = 0.1, .p = 3};
  PipelineOptions options = plain::options_of(training);
  options.plan.table = schedule::place(
      schedule::generate("gpipe", {.stages = 4, .micro_batches = options.micro_batches}),
      {0, 1, 1, 0}, 2);
  Pipeline alone(plain::make_net(), options);
  const plain::Outcome expected = plain::train(alone, training);
  spawn(2, [&](World& world) {
    Pipeline pipeline(plain::make_net(), over(world, options));
    plain::expect_same(
        expected, plain::train(pipeline, training, world.rank() == 0, world.rank() == 0), 1e-300);
  });
}

TEST(RanksOptimizer, GivesInputItsGradientWhereItsStageIs) {
  const support::WatchDog watch("an input's gradient");
  const auto gradient = [](PipelineOptions options, bool has_input, bool has_target) {
    Pipeline pipeline(plain::make_net(), std::move(options));
    const at::Tensor x = plain::input(0).requires_grad_();
    pipeline.step(has_input ? x : at::Tensor(), has_target ? plain::target(0) : at::Tensor(),
                  nn::mean_squared_error());
    return x.grad();
  };
  const at::Tensor alone = gradient(plain::options_of({}), true, true);
  spawn(4, [&](World& world) {
    const at::Tensor own =
        gradient(over(world, plain::options_of({})), world.rank() == 0, is_last(world));
    ASSERT_EQ(own.defined(), world.rank() == 0);
    EXPECT_TRUE(!own.defined() || at::equal(alone, own));
  });
}

// Only the last rank has the infinity in its target; its gradients and those that it sends are not
// finite.
TEST(RanksOptimizer, OverflowOnOneRankSkipsStepOnAllRanks) {
  const support::WatchDog watch("an overflow");
  spawn(4, [&](World& world) {
    precision::GradientScaler scaler({.initial_scale = 1024});
    Pipeline pipeline(plain::make_net(), over(world, plain::options_of({.max_norm = 0.2})));
    for (int step = 0; step < 3; ++step) {
      at::Tensor y = is_last(world) ? plain::target(step) : at::Tensor();
      if (step == 1 && y.defined()) y[0][0] = std::numeric_limits<double>::infinity();
      const auto before = plain::weights_of(pipeline.named_parameters());
      const auto result = pipeline.step(world.rank() == 0 ? plain::input(step) : at::Tensor(), y,
                                        nn::mean_squared_error(), {.scaler = &scaler});
      EXPECT_EQ(result.stepped, step != 1);
      EXPECT_EQ(scaler.scale(), step < 1 ? 1024 : 512);
      for (const auto& [name, tensor] : plain::weights_of(pipeline.named_parameters())) {
        const bool trained = !name.starts_with("frozen");
        EXPECT_EQ(at::equal(tensor, before.at(name)), step == 1 || !trained) << name;
      }
    }
  });
}

TEST(RanksOptimizer, NamesDifferencesBetweenRanks) {
  const support::WatchDog watch("ranks that differ");
  const auto step = [](World& world, const PipelineOptions& options, const StepOptions& how) {
    Pipeline pipeline(plain::make_net(), over(world, options));
    pipeline.step(plain::input(0), plain::target(0), nn::mean_squared_error(), how);
  };
  for (const auto& message : messages_of_ranks(4, [&](World& world) {
         PipelineOptions options = plain::options_of({.max_norm = world.rank() == 2 ? 1.0 : 2.0});
         step(world, options, {});
       }))
    EXPECT_THAT(message, HasSubstr("'clip_grad_norm 1' on rank 2, 'clip_grad_norm 2' on rank 0"));
  for (const auto& message : messages_of_ranks(4, [&](World& world) {
         step(
             world, plain::options_of({}),
             {.update = world.rank() == 1 ? StepOptions::Update::Later : StepOptions::Update::Now});
       }))
    EXPECT_THAT(message, HasSubstr("StepOptions::update Later on rank 1, Now on rank 0"));
  for (const auto& message : messages_of_ranks(4, [&](World& world) {
         PipelineOptions options = plain::options_of({});
         if (world.rank() == 3)
           options.optimizer.make = [](int, const NamedTensors&) { return nullptr; };
         step(world, options, {});
       }))
    EXPECT_THAT(message, HasSubstr("gave no optimizer for stage 3"));
}

}  // namespace
}  // namespace trestle
