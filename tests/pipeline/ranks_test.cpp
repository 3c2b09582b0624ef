// A pipeline over ranks gives the bits of the same pipeline in one process, for all placements,
// schedules and recompute modes.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "tests/pipeline/rank_plans.h"
#include "tests/support/virtual_environment.h"
#include "trestle/comm/threads/spawn.h"

namespace trestle {
namespace {

using namespace std::chrono_literals;
using namespace ranks;

void check_bits(const Net& net, const RankPlan& plan) {
  SCOPED_TRACE(name_of(net, plan));
  const support::WatchDog watch(name_of(net, plan), 60s);
  const Outcome expected = in_one_process(net, plan);
  // With the calling thread's number of intra-op threads, which may change the last bits.
  const auto outcomes = spawn(plan.ranks(), [&](World& world) { return on_rank(net, plan, world); },
                              {.deadline = 20s, .threads = at::get_num_threads()});
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

// Compares with the plain model too: the pipeline in one process is no independent oracle.
void check_against_the_plain_model(const Net& net, const RankPlan& plan) {
  const auto expected = oracle::looped(net.make(), net.input, net.target, loss_of(net, plan),
                                       plan.micro_batches, 7, 0);
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
          check_bits(net, {.balance = balance,
                           .micro_batches = micro_batches,
                           .schedule = schedule,
                           .recompute = recompute});
      }
    }
    check_bits(net, {.balance = balance, .use = Use::CallersBackward});
    check_bits(net, {.balance = balance,
                     .recompute = Recompute::Always,
                     .use = Use::CallersBackward,
                     .on = On::Virtual});
    check_bits(net, {.balance = balance, .schedule = "1f1b", .on = On::Virtual});
    check_against_the_plain_model(net, {.balance = balance, .schedule = "1f1b"});
  }
}

TEST(RanksPipeline, TrainsToyWithFanOutSkipsAndDropout) {
  check_all(support::toy(0.3), {{10}, {5, 5}, {4, 3, 3}, {2, 3, 2, 3}});
}
TEST(RanksPipeline, TrainsUNetWithSkipsOverRanks) {
  const int layers = static_cast<int>(support::narrow_unet().make().size());
  check_all(support::narrow_unet(),
            {support::even_balance(layers, 2), support::even_balance(layers, 4)});
}
TEST(RanksPipeline, TrainsUNetOfVolumesWithSkipsOverRanks) {
  check_all(support::narrow_unet3d(), {{3, 9}});
}
TEST(RanksPipeline, TrainsFlatResNetWithSkipsBetweenRanks) {
  const int layers = static_cast<int>(support::flat_resnet().make().size());
  check_all(support::flat_resnet(), {support::even_balance(layers, 3)});
}

// P14: several stages per rank in any placement; neighbours on one rank send no message.
TEST(RanksPipeline, SupportsLoopedPlacement) {
  const Net net = support::toy(0.3);
  for (const Use use : {Use::Step, Use::CallersBackward}) {
    check_bits(net, {.balance = {3, 2, 3, 2}, .rank_of_stage = {0, 1, 0, 1}, .use = use});
    check_bits(net, {.balance = {3, 2, 3, 2},
                     .rank_of_stage = {0, 1, 0, 1},
                     .recompute = Recompute::Always,
                     .use = use,
                     .on = On::Virtual});
  }
}
// Schedules x ranks x stages x micro-batches x recompute x devices, for one schedule.
void check_whole_matrix(const schedule::ScheduleInfo& known) {
  const Net net = support::toy(0.3);
  const int layers = static_cast<int>(net.make().size());
  std::vector<std::pair<int, int>> stages_and_micro_batches;  // a rank's stages
  for (const int each : {1, 2, 3, 4})
    for (const int micro_batches : {1, 2, 3, 4, 6, 10})
      stages_and_micro_batches.emplace_back(each, micro_batches);
  for (const int ranks : {2, 3, 4, 5})
    for (const auto& [each, micro_batches] : stages_and_micro_batches) {
      if (ranks * each > layers) continue;
      try {
        schedule::generate(
            known.name,
            {.stages = ranks * each, .micro_batches = micro_batches, .stages_per_rank = each});
      } catch (const UsageError&) {
        continue;  // sizes that it does not take
      }
      RankPlan plan =
          plan_of(known.name, support::even_balance(layers, ranks * each), ranks, micro_batches);
      for (const Recompute recompute : {Recompute::Never, Recompute::ExceptLast, Recompute::Always})
        for (const On on : {On::Cpu, On::Virtual}) {
          plan.recompute = recompute;
          plan.on = on;
          check_bits(net, plan);
          check_against_the_plain_model(net, plan);
          std::cout << known.name << ", " << ranks << " thread ranks of " << each << " stages, "
                    << micro_batches << " micro-batches, recompute "
                    << schedule::to_string(recompute) << (on == On::Cpu ? ", cpu" : ", virtual")
                    << (::testing::Test::HasFailure() ? " failed" : " passed") << std::endl;
        }
    }
}

TEST(RanksPipeline, RunsEverySchedule) {
  if (std::getenv("TRESTLE_WHOLE_MATRIX") != nullptr) {
    for (const auto& known : schedule::known_schedules()) check_whole_matrix(known);
    return;
  }
  int turn = 0;
  for (const auto& known : schedule::known_schedules()) {
    const bool v = known.stage_order == schedule::StageOrder::V;
    const std::vector<std::vector<int>> balances =
        known.stages_per_rank == 1 ? std::vector<std::vector<int>>{{4, 6}, {4, 3, 3}}
        : v                        ? std::vector<std::vector<int>>{{3, 2, 3, 2}, {2, 2, 2, 1, 2, 1}}
            : std::vector<std::vector<int>>{{3, 2, 1, 1, 2, 1}, {2, 2, 2, 1, 2, 1}};
    for (const int ranks : {2, 3})
      for (const Recompute recompute : {Recompute::Never, Recompute::Always}) {
        RankPlan plan =
            plan_of(known.name, balances[static_cast<std::size_t>(ranks) - 2], ranks, 6);
        plan.recompute = recompute;
        plan.on = ++turn % 2 == 0 ? On::Virtual : On::Cpu;
        check_bits(support::toy(0.3), plan);
        check_against_the_plain_model(support::toy(0.3), plan);
        if (recompute == Recompute::Always || ranks == 3) continue;
        const int layers = static_cast<int>(support::narrow_unet().make().size());
        plan.balance = support::even_balance(layers, static_cast<int>(plan.balance.size()));
        check_bits(support::narrow_unet(), plan);
      }
  }
}
// P19. With two stages on a rank both values that may be None cross, otherwise the first one does.
TEST(RanksPipeline, SendsNoneAndIntegersUnderEverySchedule) {
  const Net net = support::sometimes_none();
  for (const auto& known : schedule::known_schedules()) {
    const std::vector<int> balance =
        known.stages_per_rank == 1 ? std::vector<int>{2, 6} : std::vector<int>{2, 2, 2, 2};
    const RankPlan plan = plan_of(known.name, balance, 2, 4);
    check_bits(net, plan);
    check_against_the_plain_model(net, plan);
  }
}
TEST(RanksPipeline, SupportsVPlacement) {
  const Net net = support::toy(0.3);
  for (const On on : {On::Cpu, On::Virtual}) {
    check_bits(net, {.balance = {3, 2, 3, 2}, .rank_of_stage = {0, 1, 1, 0}, .on = on});
    check_bits(net, {.balance = {2, 2, 2, 1, 2, 1}, .rank_of_stage = {0, 1, 2, 2, 1, 0}, .on = on});
  }
}
TEST(RanksPipeline, SupportsPlacementThatBeginsOnLastRank) {
  const Net net = support::toy(0.3);
  check_bits(net, {.balance = {5, 5}, .rank_of_stage = {1, 0}});
  check_bits(net, {.balance = {3, 2, 3, 2}, .rank_of_stage = {2, 0, 1, 0}});
}

}  // namespace
}  // namespace trestle
