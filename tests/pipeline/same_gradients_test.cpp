// The invariant: for every split, schedule, number of micro-batches and recompute mode, the loss
// and every gradient equal those of the unsplit model.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/pipeline/gradient_nets.h"
#include "tests/support/virtual_environment.h"
#include "trestle/base/text.h"
#include "trestle/pipeline/pipeline.h"

namespace trestle {
namespace {

using support::even_balance;
using support::flat_resnet;
using support::narrow_resnet50;
using support::narrow_unet;
using support::narrow_unet3d;
using support::Net;
using support::toy;

enum class Use { GpipeStep, CallersBackward, OneFOneBStep };

oracle::Outcome run(const Net& net, Use use, const PipelineOptions& options) {
  nn::Layers model = net.make();
  const std::string schedule = use == Use::OneFOneBStep ? "1f1b" : "gpipe";
  PipelineOptions own = options;
  own.schedule = schedule;
  Pipeline pipeline(model, own);
  const at::Tensor input = net.input;
  if (use == Use::CallersBackward) {
    const at::Tensor output = pipeline.forward(input);
    const at::Tensor value = net.loss.value(output, net.target.to(output.device()));
    value.backward();
    return oracle::collect(model, value.item<double>(), output, input);
  }
  const auto& loss = use == Use::OneFOneBStep ? net.one_f_one_b_loss : net.loss;
  const StepResult result =
      pipeline.step(input, net.target, loss, {.output = StepOptions::Output::Keep});
  return oracle::collect(model, result.loss, result.output, input);
}

// A caller's loss covers the whole output; for an additive loss the looped oracle adds up to the
// same. Every use with every recompute mode for `all_combinations` micro-batches; for other counts
// one combination for each number of stages and use.
void check(const Net& net, int all_combinations = 5,
           const std::vector<int>& other_counts = {1, 2, 4}) {
  constexpr Use uses[] = {Use::GpipeStep, Use::CallersBackward, Use::OneFOneBStep};
  constexpr Recompute modes[] = {Recompute::Never, Recompute::ExceptLast, Recompute::Always};
  const int layers = static_cast<int>(net.make().size());
  std::optional<oracle::Outcome> whole;
  if (!net.batch_statistics)
    whole = oracle::whole_batch(net.make(), net.input, net.target, net.loss);
  std::vector<int> counts = other_counts;
  if (all_combinations > 0) counts.push_back(all_combinations);
  for (const int micro_batches : counts) {
    const auto gpipe =
        oracle::looped(net.make(), net.input, net.target, net.loss, micro_batches, 7, 0);
    const auto one_f_one_b = oracle::looped(net.make(), net.input, net.target, net.one_f_one_b_loss,
                                            micro_batches, 7, 0);
    for (int stages = 1; stages <= 4; ++stages) {
      for (int use = 0; use < 3; ++use) {
        for (int mode = 0; mode < 3; ++mode) {
          if (micro_batches != all_combinations && mode != (stages + use) % 3) continue;
          SCOPED_TRACE(text(net.name, ", ", stages, " stages, ", micro_batches,
                            " micro-batches, use ", use, ", recompute ",
                            schedule::to_string(modes[mode])));
          const auto outcome = run(net, uses[use],
                                   {.devices = virtual_devices(stages),
                                    .balance = even_balance(layers, stages),
                                    .micro_batches = micro_batches,
                                    .recompute = modes[mode],
                                    .numerics = {.seed = 7}});
          oracle::expect_same(uses[use] == Use::OneFOneBStep ? one_f_one_b : gpipe, outcome);
          EXPECT_LT((outcome.output - gpipe.output).abs().max().item<double>(), oracle::rounding);
          if (whole) oracle::expect_same(*whole, outcome);
        }
      }
    }
  }
}

TEST(SameGradients, NarrowUNetWithLongSkips) { check(narrow_unet()); }
TEST(SameGradients, NarrowUNetOfVolumes) { check(narrow_unet3d(), 2, {1, 5}); }
TEST(SameGradients, FlatResNetWithSkipsBetweenDevices) { check(flat_resnet()); }
// Many small operators: all combinations take 6 s.
TEST(SameGradients, NarrowResNet50) { check(narrow_resnet50(), 0, {2}); }
TEST(SameGradients, ToyWithFanOutSkipsAndDropout) { check(toy(0.3)); }
TEST(SameGradients, ToyEqualsWholeBatchWithoutDropout) { check(toy(0)); }

TEST(SameGradients, OnPlainCpuInOneThread) {
  const Net net = toy(0.3);
  const auto expected = oracle::looped(net.make(), net.input, net.target, net.loss, 5, 7, 0);
  for (const Use use : {Use::GpipeStep, Use::CallersBackward, Use::OneFOneBStep}) {
    oracle::expect_same(expected, run(net, use,
                                      {.balance = {4, 3, 3},
                                       .micro_batches = 5,
                                       .recompute = Recompute::ExceptLast,
                                       .numerics = {.seed = 7}}));
  }
}

TEST(SameGradients, BitForBitInSameOrderOfAdditions) {
  const Net net = toy(0.3);
  nn::Layers plain = net.make();
  const auto pieces = pipeline::split({net.input, net.target}, 4);
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const nn::RunKey key{.seed = 7, .step = 0, .micro_batch = static_cast<std::int64_t>(m)};
    const at::Tensor output = nn::run(plain.graph(), {pieces[m][0]}, key).at(0);
    const at::Tensor loss = net.loss.value(output, pieces[m][1]);
    loss.backward(at::full_like(
        loss, static_cast<double>(pieces[m][1].size(0)) / static_cast<double>(net.target.size(0))));
  }
  nn::Layers model = net.make();
  Pipeline pipeline(model, {.devices = virtual_devices(3),
                            .balance = {4, 3, 3},
                            .micro_batches = 4,
                            .recompute = Recompute::Always,
                            .plan = {.backward_order = BackwardOrder::Forward},
                            .numerics = {.seed = 7}});
  pipeline.step(net.input, net.target, net.loss);
  for (const auto& [name, gradient] : oracle::gradients_of(plain.named_parameters())) {
    EXPECT_TRUE(at::equal(gradient, oracle::gradients_of(model.named_parameters()).at(name)))
        << name;
  }
}

TEST(SameGradients, OverManySteps) {
  const Net net = toy(0.3);
  nn::Layers plain = net.make();
  nn::Layers model = net.make();
  Pipeline pipeline(model, {.devices = virtual_devices(2),
                            .balance = {5, 5},
                            .micro_batches = 3,
                            .schedule = "1f1b",
                            .numerics = {.seed = 3}});
  auto descend = [](const std::vector<at::Tensor>& parameters) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : parameters) parameter.sub_(parameter.grad(), 0.1);
  };
  for (int step = 0; step < 20; ++step) {
    SCOPED_TRACE(step);
    const auto expected = oracle::looped(plain, net.input, net.target, net.loss, 3, 3, step);
    descend(plain.parameters());
    pipeline.zero_grad();
    const double loss = pipeline.step(net.input, net.target, net.loss).loss;
    descend(pipeline.parameters());
    ASSERT_NEAR(expected.loss, loss, oracle::rounding);
  }
}

}  // namespace
}  // namespace trestle
