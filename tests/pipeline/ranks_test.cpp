// The invariant over ranks: the same numbers, bit for bit, as from the same pipeline in one process,
// whatever the ranks, the placement of stages, the schedule and the recomputation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/gradient_nets.h"
#include "tests/pipeline/support.h"
#include "tests/support/virtual_environment.h"
#include "trestle/base/text.h"
#include "trestle/comm/spawn.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/schedule/placement.h"

namespace trestle {
namespace {

using namespace std::chrono_literals;
using support::Net;
using testing::ElementsAre;
using testing::HasSubstr;

enum class Use { Step, CallersBackward };
enum class On { Cpu, Virtual };

struct RankPlan {
  std::vector<int> balance;
  int micro_batches = 4;
  std::string schedule = "gpipe";
  std::vector<int> rank_of_stage = {};  // empty = one rank each
  Recompute recompute = Recompute::Never;
  Use use = Use::Step;
  On on = On::Cpu;

  int ranks() const {
    return rank_of_stage.empty()
               ? static_cast<int>(balance.size())
               : *std::max_element(rank_of_stage.begin(), rank_of_stage.end()) + 1;
  }
};

std::string name_of(const Net& net, const RankPlan& plan) {
  return text(net.name, ", balance ", join(plan.balance, "-"), ", ranks of stages ",
              join(plan.rank_of_stage, "-"), ", ", plan.schedule, ", ", plan.micro_batches,
              " micro-batches, recompute ", schedule::to_string(plan.recompute), ", use ",
              static_cast<int>(plan.use), plan.on == On::Cpu ? ", cpu" : ", virtual");
}

PipelineOptions options_of(const RankPlan& plan) {
  PipelineOptions options{.balance = plan.balance,
                          .micro_batches = plan.micro_batches,
                          .schedule = plan.schedule,
                          .recompute = plan.recompute,
                          .seed = 7};
  if (!plan.rank_of_stage.empty()) {
    const int stages = static_cast<int>(plan.balance.size());
    schedule::Schedule placed;
    placed.rank_of_stage = plan.rank_of_stage;
    placed.ranks.resize(static_cast<std::size_t>(plan.ranks()));
    options.table = schedule::place(
        schedule::generate("gpipe", {.stages = stages, .micro_batches = plan.micro_batches}),
        placed);
  }
  return options;
}

struct Outcome {
  double loss = 0;
  double weight = 0;
  std::map<std::string, at::Tensor> gradients, buffers;
  at::Tensor output, input_gradient;
};

Outcome collect(const Pipeline& pipeline, double loss, const at::Tensor& output,
                const at::Tensor& input) {
  return {.loss = loss,
          .gradients = oracle::gradients_of(pipeline.named_parameters()),
          .buffers = oracle::to_map(pipeline.named_buffers()),
          .output = output.defined() ? output.detach().cpu() : output,
          .input_gradient = input.defined() && input.grad().defined() ? input.grad().cpu().clone()
                                                                      : at::Tensor()};
}

// One process or one rank: who is first reads the input, who is last the target.
Outcome run(const Net& net, const RankPlan& plan, const PipelineOptions& options, bool first,
            bool last) {
  nn::Layers model = net.make();
  Pipeline pipeline(model, options);
  at::Tensor input;
  if (first) input = net.input.clone().set_requires_grad(plan.use == Use::CallersBackward);
  if (plan.use == Use::Step) {
    const nn::Loss& loss = plan.schedule == "1f1b" ? net.one_f_one_b_loss : net.loss;
    const auto result = pipeline.step(input, last ? net.target : at::Tensor(), loss,
                                      {.output = StepOptions::Output::Keep});
    Outcome outcome = collect(pipeline, result.loss, result.output, input);
    outcome.weight = result.weight;
    return outcome;
  }
  const at::Tensor output = pipeline.forward(input);
  EXPECT_EQ(output.defined(), last);
  if (!last) {
    pipeline.backward();
    return collect(pipeline, 0, output, input);
  }
  const at::Tensor loss = net.loss.value(output, net.target.to(output.device()));
  pipeline.backward(loss);
  return collect(pipeline, loss.item<double>(), output, input);
}

Outcome in_one_process(const Net& net, const RankPlan& plan) {
  PipelineOptions options = options_of(plan);
  if (plan.on == On::Virtual) {
    const auto devices = virtual_devices(4);
    for (std::size_t s = 0; s < plan.balance.size(); ++s)
      options.devices.push_back(
          devices[plan.rank_of_stage.empty() ? s
                                             : static_cast<std::size_t>(plan.rank_of_stage[s])]);
  }
  return run(net, plan, options, true, true);
}

Outcome on_rank(const Net& net, const RankPlan& plan, const World& world) {
  PipelineOptions options = options_of(plan);
  options.group = world.group();
  options.deadline = 20s;
  if (plan.on == On::Virtual)
    options.devices = {virtual_devices(4)[static_cast<std::size_t>(world.rank())]};
  const int first = plan.rank_of_stage.empty() ? 0 : plan.rank_of_stage.front();
  const int last = plan.rank_of_stage.empty() ? world.size() - 1 : plan.rank_of_stage.back();
  return run(net, plan, options, world.rank() == first, world.rank() == last);
}

void expect_same_bits(const std::map<std::string, at::Tensor>& expected,
                      const std::map<std::string, at::Tensor>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    ASSERT_NE(found, actual.end()) << name;
    ASSERT_EQ(tensor.defined(), found->second.defined()) << name;
    if (tensor.defined()) {
      EXPECT_TRUE(at::equal(tensor, found->second)) << name;
    }
  }
}

void check(const Net& net, const RankPlan& plan) {
  SCOPED_TRACE(name_of(net, plan));
  const support::WatchDog watch(name_of(net, plan), 60s);
  const Outcome expected = in_one_process(net, plan);
  const auto outcomes = spawn(plan.ranks(), [&](World& world) { return on_rank(net, plan, world); },
                              {.deadline = 20s});
  std::map<std::string, at::Tensor> gradients, buffers;
  const int last = plan.rank_of_stage.empty() ? plan.ranks() - 1 : plan.rank_of_stage.back();
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    for (const auto& [name, tensor] : outcome.gradients)
      EXPECT_TRUE(gradients.emplace(name, tensor).second) << name << " is on two ranks";
    for (const auto& [name, tensor] : outcome.buffers) buffers.emplace(name, tensor);
    if (plan.use == Use::Step || rank == last) {
      EXPECT_EQ(outcome.loss, expected.loss);
    }
    EXPECT_EQ(outcome.weight, expected.weight);
    EXPECT_EQ(outcome.output.defined(), rank == last);
  }
  expect_same_bits(expected.gradients, gradients);
  expect_same_bits(expected.buffers, buffers);
  EXPECT_TRUE(at::equal(outcomes[static_cast<std::size_t>(last)].output, expected.output));
  const int first = plan.rank_of_stage.empty() ? 0 : plan.rank_of_stage.front();
  if (plan.use == Use::CallersBackward) {
    EXPECT_TRUE(at::equal(outcomes[static_cast<std::size_t>(first)].input_gradient,
                          expected.input_gradient));
  }
}

// And the same as the plain model: the pipeline in one process is no oracle for itself.
void check_against_the_plain_model(const Net& net, const RankPlan& plan) {
  const nn::Loss& loss = plan.schedule == "1f1b" ? net.one_f_one_b_loss : net.loss;
  const auto expected =
      oracle::looped(net.make(), net.input, net.target, loss, plan.micro_batches, 7, 0);
  const auto outcomes =
      spawn(plan.ranks(), [&](World& world) { return on_rank(net, plan, world); });
  std::map<std::string, at::Tensor> gradients;
  for (const auto& outcome : outcomes)
    gradients.insert(outcome.gradients.begin(), outcome.gradients.end());
  EXPECT_LT(oracle::difference(expected.gradients, gradients), oracle::rounding);
  EXPECT_NEAR(expected.loss, outcomes[0].loss, oracle::rounding * std::max(1.0, expected.loss));
}

void check_all(const Net& net, const std::vector<std::vector<int>>& balances) {
  for (const auto& balance : balances) {
    for (const std::string schedule : {"gpipe", "1f1b"}) {
      for (const Recompute recompute :
           {Recompute::Never, Recompute::ExceptLast, Recompute::Always}) {
        for (const int micro_batches : {1, 5})
          check(net, {.balance = balance,
                      .micro_batches = micro_batches,
                      .schedule = schedule,
                      .recompute = recompute});
      }
    }
    check(net, {.balance = balance, .use = Use::CallersBackward});
    check(net, {.balance = balance,
                .recompute = Recompute::Always,
                .use = Use::CallersBackward,
                .on = On::Virtual});
    check(net, {.balance = balance, .schedule = "1f1b", .on = On::Virtual});
    check_against_the_plain_model(net, {.balance = balance, .schedule = "1f1b"});
  }
}

TEST(RanksPipeline, ToyWithFanOutSkipsAndDropout) {
  check_all(support::toy(0.3), {{10}, {5, 5}, {4, 3, 3}, {2, 3, 2, 3}});
}
TEST(RanksPipeline, NarrowUNetWhoseLongSkipsJumpOverRanks) {
  const int layers = static_cast<int>(support::narrow_unet().make().size());
  check_all(support::narrow_unet(),
            {support::even_balance(layers, 2), support::even_balance(layers, 4)});
}
TEST(RanksPipeline, FlatResNetWhoseSkipsCrossRanks) {
  const int layers = static_cast<int>(support::flat_resnet().make().size());
  check_all(support::flat_resnet(), {support::even_balance(layers, 3)});
}

// P14: several stages on a rank, in any placement; neighbours on one rank need no message.
TEST(RanksPipeline, LoopedPlacement) {
  const Net net = support::toy(0.3);
  for (const Use use : {Use::Step, Use::CallersBackward}) {
    check(net, {.balance = {3, 2, 3, 2}, .rank_of_stage = {0, 1, 0, 1}, .use = use});
    check(net, {.balance = {3, 2, 3, 2},
                .rank_of_stage = {0, 1, 0, 1},
                .recompute = Recompute::Always,
                .use = use,
                .on = On::Virtual});
  }
}
TEST(RanksPipeline, VPlacement) {
  const Net net = support::toy(0.3);
  for (const On on : {On::Cpu, On::Virtual}) {
    check(net, {.balance = {3, 2, 3, 2}, .rank_of_stage = {0, 1, 1, 0}, .on = on});
    check(net, {.balance = {2, 2, 2, 1, 2, 1}, .rank_of_stage = {0, 1, 2, 2, 1, 0}, .on = on});
  }
}
TEST(RanksPipeline, PlacementThatBeginsOnTheLastRank) {
  const Net net = support::toy(0.3);
  check(net, {.balance = {5, 5}, .rank_of_stage = {1, 0}});
  check(net, {.balance = {3, 2, 3, 2}, .rank_of_stage = {2, 0, 1, 0}});
}

}  // namespace
}  // namespace trestle
