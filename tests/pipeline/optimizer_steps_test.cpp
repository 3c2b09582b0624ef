// NORM and STEP in one process, compared with a training by libtorch alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/plain_training.h"
#include "tests/pipeline/support.h"
#include "tests/support/virtual_environment.h"
#include "trestle/base/error.h"
#include "trestle/device/virtual_device.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/schedule/optimizer_steps.h"
#include "trestle/schedule/placement.h"
#include "trestle/schedule/validate.h"

namespace trestle {
namespace {

using plain::Training;
using schedule::Kind;
using support::message_of;
using ::testing::HasSubstr;

constexpr double infinity = std::numeric_limits<double>::infinity();

// Stages 0 and 3 on rank 0, stages 1 and 2 on rank 1.
schedule::Schedule v_table(int micro_batches) {
  return schedule::place(schedule::generate("gpipe", {.stages = 4, .micro_batches = micro_batches}),
                         {0, 1, 1, 0}, 2);
}

struct OptimizerPlan {
  std::string name;
  std::string schedule = "gpipe";
  bool virtual_devices = false;
  bool v = false;
  Training training = {};
};

class TrainsAsLibtorch : public ::testing::TestWithParam<OptimizerPlan> {};

TEST_P(TrainsAsLibtorch, UnderThisPlan) {
  const support::WatchDog watch("optimizer steps");
  const OptimizerPlan& plan = GetParam();
  PipelineOptions options = plain::options_of(plan.training);
  options.schedule = plan.schedule;
  options.recompute = Recompute::ExceptLast;
  if (plan.v) options.plan.table = v_table(options.micro_batches);
  if (plan.virtual_devices) {
    const auto devices = virtual_devices(4);
    options.devices =
        plan.v ? std::vector{devices[0], devices[1], devices[1], devices[0]} : devices;
  }
  Pipeline pipeline(plain::make_net(), options);
  plain::expect_same(plain::train(plan.training), plain::train(pipeline, plan.training));
  EXPECT_NO_THROW(schedule::validate(pipeline.schedule()));
  EXPECT_EQ(pipeline.optimizer(1), nullptr);  // tanh
}

INSTANTIATE_TEST_SUITE_P(
    Plans, TrainsAsLibtorch,
    ::testing::Values(
        OptimizerPlan{"gpipe"}, OptimizerPlan{"clipped", "gpipe", true, false, {.max_norm = 0.3}},
        OptimizerPlan{"one_f_one_b", "1f1b", true, false, {.adam = false, .max_norm = 0.1, .p = 1}},
        OptimizerPlan{
            "on_the_cpu", "1f1b", false, false, {.adam = false, .max_norm = 0.05, .p = infinity}},
        OptimizerPlan{"two_stages_a_rank", "gpipe", true, true, {.max_norm = 0.1, .p = 3}},
        OptimizerPlan{"two_stages_a_rank_on_the_cpu",
                      "gpipe",
                      false,
                      true,
                      {.adam = false, .max_norm = 0.1}}),
    [](const auto& info) { return info.param.name; });

TEST(OptimizerSteps, OnlyLastAccumulatedStepUpdatesWeights) {
  const Training training{.max_norm = 0.2, .steps = 2};
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    PipelineOptions options = plain::options_of(training);
    options.schedule = schedule;
    Pipeline pipeline(plain::make_net(), options);
    plain::Outcome own;
    for (int step = 0; step < training.steps; ++step) {
      const at::Tensor x = plain::input(step, 12), y = plain::target(step, 12);
      const auto first =
          pipeline.step(x.narrow(0, 0, 8), y.narrow(0, 0, 8), nn::mean_squared_error(),
                        {.gradient_scale = 2.0 / 3, .update = StepOptions::Update::Later});
      EXPECT_FALSE(first.stepped);
      EXPECT_FALSE(first.gradient_norm.has_value());
      const auto second =
          pipeline.step(x.narrow(0, 8, 4), y.narrow(0, 8, 4), nn::mean_squared_error(),
                        {.gradient_scale = 1.0 / 3, .first_micro_batch = first.micro_batches});
      EXPECT_TRUE(second.stepped);
      own.norms.push_back(second.gradient_norm.value());
      own.losses.push_back((2 * first.loss + second.loss) / 3);
    }
    own.weights = plain::weights_of(pipeline.named_parameters());
    plain::expect_same(plain::train(training, 12), own);
  }
}

TEST(OptimizerSteps, SkipNonFiniteGradients) {
  const Training training{.max_norm = 0.2};
  for (const bool on_cpu : {true, false}) {
    PipelineOptions options = plain::options_of(training);
    if (!on_cpu) options.devices = virtual_devices(4);
    Pipeline pipeline(plain::make_net(), options);
    plain::Outcome own;
    for (int step = 0; step < training.steps; ++step) {
      plain::set_rates(pipeline, training, step);
      at::Tensor y = plain::target(step);
      if (step == 1) y[7][2] = infinity;
      const auto before = plain::weights_of(pipeline.named_parameters());
      const auto result = pipeline.step(plain::input(step), y, nn::mean_squared_error());
      EXPECT_EQ(result.stepped, step != 1);
      for (const auto& parameter : pipeline.parameters()) EXPECT_FALSE(parameter.grad().defined());
      if (step != 1) {
        own.norms.push_back(result.gradient_norm.value());
        own.losses.push_back(result.loss);
        continue;
      }
      EXPECT_FALSE(std::isfinite(result.gradient_norm.value()));
      for (const auto& [name, tensor] : plain::weights_of(pipeline.named_parameters()))
        EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
    }
    own.weights = plain::weights_of(pipeline.named_parameters());
    plain::expect_same(plain::train(training, 8, 1), own);
  }
}

// Scaling by a power of two changes no bits unless it overflows.
TEST(OptimizerSteps, UnscaleGradientsAndUpdateScale) {
  const Training training{.max_norm = 0.2};
  precision::GradientScaler scaler({.initial_scale = 256, .growth_interval = 3});
  PipelineOptions options = plain::options_of(training);
  options.devices = virtual_devices(4);
  Pipeline pipeline(plain::make_net(), options);
  plain::Outcome own;
  for (int step = 0; step < training.steps; ++step) {
    plain::set_rates(pipeline, training, step);
    at::Tensor y = plain::target(step);
    if (step == 1) y[0][0] = infinity;
    const at::Tensor x = plain::input(step);
    // Two accumulated steps use one scale.
    const auto first = pipeline.step(
        x.narrow(0, 0, 4), y.narrow(0, 0, 4), nn::mean_squared_error(),
        {.gradient_scale = 0.5, .update = StepOptions::Update::Later, .scaler = &scaler});
    EXPECT_EQ(scaler.scale(), step < 2 ? 256 : 128);
    const auto result = pipeline.step(
        x.narrow(0, 4, 4), y.narrow(0, 4, 4), nn::mean_squared_error(),
        {.gradient_scale = 0.5, .first_micro_batch = first.micro_batches, .scaler = &scaler});
    EXPECT_EQ(result.stepped, step != 1);
    if (step == 1) continue;
    own.norms.push_back(result.gradient_norm.value());
    own.losses.push_back((first.loss + result.loss) / 2);
  }
  EXPECT_EQ(scaler.scale(), 128);
  own.weights = plain::weights_of(pipeline.named_parameters());
  plain::expect_same(plain::train(training, 8, 1), own);
}

TEST(OptimizerSteps, GiveInputsUnscaledGradients) {
  const auto gradient = [](precision::GradientScaler* scaler) {
    Pipeline pipeline(plain::make_net(), plain::options_of({}));
    const at::Tensor x = plain::input(0).requires_grad_();
    pipeline.step(x, plain::target(0), nn::mean_squared_error(), {.scaler = scaler});
    return x.grad();
  };
  precision::GradientScaler scaler({.initial_scale = 256});
  EXPECT_TRUE(at::equal(gradient(nullptr), gradient(&scaler)));
}

// The scale shrinks until fp16 gradients no longer overflow.
TEST(OptimizerSteps, KeepNonFiniteGradientsOnRequest) {
  Pipeline pipeline(plain::make_net(), plain::options_of({.max_norm = 0.2}));
  at::Tensor y = plain::target(0);
  y[7][2] = infinity;
  const auto before = plain::weights_of(pipeline.named_parameters());
  const auto result = pipeline.step(plain::input(0), y, nn::mean_squared_error(),
                                    {.nonfinite = StepOptions::NonfiniteGradients::Keep});
  EXPECT_FALSE(result.stepped);
  bool nonfinite = false;
  for (const auto& parameter : pipeline.parameters())
    nonfinite |= parameter.grad().defined() && !parameter.grad().isfinite().all().item<bool>();
  EXPECT_TRUE(nonfinite);
  for (const auto& [name, tensor] : plain::weights_of(pipeline.named_parameters()))
    EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
}

TEST(OptimizerSteps, AcceptNoOptimizerForAFrozenStage) {
  PipelineOptions options = plain::options_of({});
  options.optimizer.make =
      [make = plain::optimizer({})](
          int stage, const NamedTensors& own) -> std::unique_ptr<torch::optim::Optimizer> {
    return stage == 0 ? nullptr : make(stage, own);
  };
  Pipeline pipeline(plain::make_net(), options);
  std::vector<at::Tensor> frozen;
  for (at::Tensor parameter : pipeline.stage_parameters(0)) {
    parameter.requires_grad_(false);
    frozen.push_back(parameter.clone());
  }
  const auto before = plain::weights_of(pipeline.named_parameters());
  EXPECT_TRUE(pipeline.step(plain::input(0), plain::target(0), nn::mean_squared_error()).stepped);
  EXPECT_EQ(pipeline.optimizer(0), nullptr);
  for (std::size_t i = 0; i < frozen.size(); ++i)
    EXPECT_TRUE(at::equal(pipeline.stage_parameters(0)[i], frozen[i]));
  int changed = 0;
  for (const auto& [name, tensor] : plain::weights_of(pipeline.named_parameters()))
    if (!at::equal(tensor, before.at(name))) ++changed;
  EXPECT_GT(changed, 0);
}

TEST(OptimizerSteps, HaveTimesInAProfile) {
  PipelineOptions options = plain::options_of({.max_norm = 1});
  options.devices = virtual_devices(4);
  Pipeline pipeline(plain::make_net(), options);
  const auto before = plain::weights_of(pipeline.named_parameters());
  const auto costs =
      pipeline.profile({plain::input(0)}, plain::target(0), nn::mean_squared_error());
  for (int stage = 0; stage < pipeline.stage_count(); ++stage) {
    const auto& cost = costs.stages[static_cast<std::size_t>(stage)];
    EXPECT_EQ(cost.norm > 0, !pipeline.stage_parameters(stage).empty()) << stage;
    EXPECT_EQ(cost.step > 0, !pipeline.stage_parameters(stage).empty()) << stage;
  }
  EXPECT_GT(schedule::optimizer_seconds(pipeline.predict(costs)), 0);
  for (const auto& [name, tensor] : plain::weights_of(pipeline.named_parameters()))
    EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
}

TEST(OptimizerSteps, Fp16FindsItsScale) {
  torch::manual_seed(1);
  nn::Layers net;
  net.add("a", torch::nn::Linear(6, 6));
  net.add("b", torch::nn::Linear(6, 6));
  Pipeline pipeline(
      net, {.devices = virtual_devices(2),
            .balance = {1, 1},
            .micro_batches = 2,
            .numerics = {.precision = Precision::Float16},
            .optimizer = {.make = plain::optimizer({.adam = false}), .clip_grad_norm = 1}});
  precision::GradientScaler scaler({.initial_scale = 1 << 24});
  int left_out = 0;
  double loss = 0;
  for (int step = 0; step < 30; ++step) {
    const auto result =
        pipeline.step(plain::rows(8, 1).to(at::kFloat), plain::rows(8, 2).to(at::kFloat),
                      nn::mean_squared_error(), {.scaler = &scaler});
    if (step == 0) loss = result.loss;
    if (!result.stepped) ++left_out;
    if (step == 29) {
      EXPECT_LT(result.loss, 0.8 * loss);
    }
  }
  EXPECT_GT(left_out, 0);
  EXPECT_EQ(scaler.scale(), std::ldexp(1.0, 24 - left_out));
}

TEST(OptimizerSteps, FailureBeforeNormLeavesAllWeightsUnchanged) {
  const support::WatchDog watch("a failing backward");
  for (const bool on_cpu : {true, false}) {
    nn::Layers net = support::chain(3);
    PipelineOptions options{.balance = {3, 2},
                            .micro_batches = 2,
                            .schedule = "1f1b",
                            .optimizer = {.make = plain::optimizer({})}};
    if (!on_cpu) options.devices = virtual_devices(2);
    Pipeline pipeline(net, options);
    pipeline.step(support::input(), support::target(), nn::cross_entropy());
    const auto before = plain::weights_of(pipeline.named_parameters());
    // By then stage 1 has finished all actions before the norm.
    pipeline.parameters()[0].register_hook(
        [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no gradient"); });
    EXPECT_ANY_THROW(pipeline.step(support::input(), support::target(), nn::cross_entropy()));
    for (const auto& [name, tensor] : plain::weights_of(pipeline.named_parameters()))
      EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
  }
}

// A plan for a net whose second layer throws in one of four micro-batches.
struct FailingPlan {
  std::string name;
  std::string schedule;
  Recompute recompute = Recompute::Never;
  bool virtual_devices = false;
};

class FailedStep : public ::testing::TestWithParam<FailingPlan> {
 protected:
  Pipeline make_pipeline() {
    nn::Layers net(nn::Seed{3});
    const auto linear = [] { return torch::nn::Linear(plain::width, plain::width); };
    net.add("a", linear);
    net.add("throws", [this](at::Tensor x) {
      if (fail_at_ > 0 && --fail_at_ == 0) throw std::runtime_error("no output");
      return at::tanh(x);
    });
    net.add("b", linear);
    PipelineOptions options{.balance = {2, 1},
                            .micro_batches = 4,
                            .schedule = GetParam().schedule,
                            .recompute = GetParam().recompute,
                            .optimizer = {.make = plain::optimizer({})}};
    if (GetParam().virtual_devices) options.devices = virtual_devices(2);
    return {net, options};
  }
  static StepResult step(Pipeline& pipeline, const StepOptions& options = {}) {
    const at::Tensor x = plain::input(0).to(at::kFloat), y = plain::target(0).to(at::kFloat);
    return pipeline.step(x, y, nn::mean_squared_error(), options);
  }

  std::atomic<int> fail_at_ = 0;  // how many forwards are left until one throws
};

TEST_P(FailedStep, LeavesNoGradientForNextStep) {
  const support::WatchDog watch("a failing forward");
  Pipeline never_failed = make_pipeline();
  step(never_failed);
  const auto expected = plain::weights_of(never_failed.named_parameters());

  Pipeline pipeline = make_pipeline();
  // With recomputation the second of four recomputed forwards throws, after a backward.
  fail_at_ = GetParam().recompute == Recompute::Always ? 6 : 4;
  EXPECT_THROW(step(pipeline), std::runtime_error);
  for (const auto& parameter : pipeline.parameters()) EXPECT_FALSE(parameter.grad().defined());
  step(pipeline);
  for (const auto& [name, tensor] : plain::weights_of(pipeline.named_parameters()))
    EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
}

TEST_P(FailedStep, DropsEarlierStepsOfItsMiniBatch) {
  const support::WatchDog watch("a failing accumulated step");
  Pipeline pipeline = make_pipeline();
  const auto first = step(pipeline, {.update = StepOptions::Update::Later});
  const StepOptions second{.first_micro_batch = first.micro_batches};
  fail_at_ = 4;
  EXPECT_THROW(step(pipeline, second), std::runtime_error);
  for (const auto& parameter : pipeline.parameters()) EXPECT_FALSE(parameter.grad().defined());
  EXPECT_THAT(message_of<StateError>([&] { step(pipeline, second); }),
              HasSubstr("first_micro_batch = 4 continues a step that failed"));
  step(pipeline, {.update = StepOptions::Update::Later});
  EXPECT_TRUE(step(pipeline, second).stepped);
}

INSTANTIATE_TEST_SUITE_P(
    OptimizerSteps, FailedStep,
    ::testing::Values(FailingPlan{"GpipeRecompute", "gpipe", Recompute::Always},
                      FailingPlan{"OneFOneB", "1f1b"},
                      FailingPlan{"OneFOneBOnDevices", "1f1b", Recompute::Never, true},
                      FailingPlan{"OneFOneBRecomputeOnDevices", "1f1b", Recompute::Always, true}),
    [](const auto& plan) { return plan.param.name; });

TEST(OptimizerSteps, AppearInTimeline) {
  for (const bool on_cpu : {true, false}) {
    PipelineOptions options = plain::options_of({.max_norm = 1});
    options.plan.table = v_table(options.micro_batches);
    if (!on_cpu) options.devices = {virtual_devices(1)[0]};
    Pipeline pipeline(plain::make_net(), options);
    const auto count = [&](Kind kind) {
      const auto timeline = pipeline.timeline();
      return std::count_if(timeline.events.begin(), timeline.events.end(),
                           [&](const auto& event) { return event.action.kind == kind; });
    };
    pipeline.step(plain::input(0), plain::target(0), nn::mean_squared_error());
    EXPECT_EQ(count(Kind::Norm), 2);
    EXPECT_EQ(count(Kind::Step), 4);
    double last_norm = 0, first_step = infinity;
    for (const auto& event : pipeline.timeline().events) {
      if (event.action.kind == Kind::Norm) last_norm = std::max(last_norm, event.begin);
      if (event.action.kind == Kind::Step) first_step = std::min(first_step, event.begin);
    }
    EXPECT_LE(last_norm, first_step);
    pipeline.step(plain::input(0), plain::target(0), nn::mean_squared_error(),
                  {.update = StepOptions::Update::Later});
    EXPECT_EQ(count(Kind::Norm) + count(Kind::Step), 0);
    pipeline.evaluate(plain::input(0));
    EXPECT_EQ(count(Kind::Norm) + count(Kind::Step), 0);
  }
}

TEST(OptimizerSteps, RefuseInvalidOptions) {
  const auto factory = plain::optimizer({});
  EXPECT_THAT(message_of<UsageError>(
                  [&] { Pipeline(support::chain(2), {.optimizer = {.clip_grad_norm = 1}}); }),
              HasSubstr("clip_grad_norm = 1 without 'optimizer.make'"));
  EXPECT_THAT(message_of<UsageError>([&] {
                Pipeline(support::chain(2),
                         {.optimizer = {.make = factory, .clip_grad_norm = -1, .clip_p = 0}});
              }),
              HasSubstr("clipped to a norm of -1"));
  Pipeline without(support::chain(2), {});
  EXPECT_THAT(message_of<StateError>([&] { without.optimizer(0); }), HasSubstr("no optimizers"));
  precision::GradientScaler scaler;
  EXPECT_THAT(message_of<UsageError>([&] {
                without.step(support::input(), support::target(), nn::cross_entropy(),
                             {.scaler = &scaler});
              }),
              HasSubstr("scaler without PipelineOptions::optimizer"));
  Pipeline none(support::chain(2),
                {.optimizer = {.make = [](int, const NamedTensors&) { return nullptr; }}});
  EXPECT_THAT(message_of<UsageError>(
                  [&] { none.step(support::input(), support::target(), nn::cross_entropy()); }),
              HasSubstr("gave no optimizer for stage 0, which has 4 parameters"));
  EXPECT_THAT(message_of<UsageError>([&] { none.optimizer(1); }), HasSubstr("there is no stage 1"));
  // Users' tables must not contain the actions that the options add.
  schedule::Schedule table = schedule::generate("gpipe", {.stages = 1, .micro_batches = 1});
  table.ranks[0].push_back({.kind = Kind::Step, .stage = 0});
  EXPECT_THAT(message_of<UsageError>([&] {
                Pipeline(
                    support::chain(2),
                    {.balance = {3}, .plan = {.table = table}, .optimizer = {.make = factory}});
              }),
              HasSubstr("0STEP"));
}

}  // namespace
}  // namespace trestle
