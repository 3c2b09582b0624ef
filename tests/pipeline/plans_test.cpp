// Invalid options, users' tables, placements, measured balances.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "tests/pipeline/support.h"
#include "tests/support/oracle.h"
#include "trestle/base/error.h"
#include "trestle/device/virtual_device.h"
#include "trestle/schedule/csv.h"

namespace trestle {
namespace {

using support::chain;
using support::distance;
using support::input;
using support::message_of;
using support::target;
using support::width;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void expect_refused(PipelineOptions options, const std::string& part) {
  EXPECT_THAT(message_of<UsageError>([&] { Pipeline(chain(3), std::move(options)); }),
              HasSubstr(part));
}

TEST(Options, InvalidValuesAreRefused) {
  const auto two = virtual_devices(2);
  expect_refused({.devices = two, .balance = {2, 2}}, "balance [2, 2] covers 4 layers");
  expect_refused({.devices = two, .balance = {5, 0}}, "a stage without layers");
  expect_refused({.devices = two, .balance = {2, 2, 1}}, "3 stages, but 2 devices");
  expect_refused({.devices = virtual_devices(6)}, "5 layers cannot be cut into 6 stages");
  expect_refused({.devices = two, .balance = {3, 2}, .micro_batches = 0}, "micro_batches = 0");
  expect_refused({.devices = two, .balance = {3, 2}, .schedule = "1f1c"}, "1f1b");
  expect_refused(
      {.devices = two,
       .balance = {3, 2},
       .plan = {.recompute_per_stage = {Recompute::Always, Recompute::Always, Recompute::Never}}},
      "recompute_per_stage has 3 entries");
  expect_refused({.devices = two,
                  .balance = {3, 2},
                  .micro_batches = 1,
                  .plan = {.table = schedule::parse_csv("0F0,0B0\n1F0,1B0\n2F0,2B0\n")}},
                 "the given table is for 3 stages");
}

TEST(Options, WrongNumbersOfTensorsAreRefused) {
  Pipeline pipeline(chain(3), {.devices = virtual_devices(2), .balance = {3, 2}});
  EXPECT_THAT(message_of<UsageError>([&] {
                pipeline.step({input(), input()}, target(), nn::cross_entropy());
              }),
              HasSubstr("takes 1 input tensors, 2 were given"));
  EXPECT_THAT(message_of<UsageError>([&] {
                pipeline.forward(nn::Values{input(), input()});
              }),
              HasSubstr("takes 1 input tensors, 2 were given"));
  EXPECT_THAT(
      message_of<UsageError>([&] { pipeline.step(input(8), target(7), nn::cross_entropy()); }),
      HasSubstr("7 samples"));
  EXPECT_THAT(
      message_of<UsageError>([&] { pipeline.step(input(0), target(0), nn::cross_entropy()); }),
      HasSubstr("empty"));
}

TEST(Options, WholeBatchLossNeedsAllForwardsFirst) {
  Pipeline pipeline(
      chain(3),
      {.devices = virtual_devices(2), .balance = {3, 2}, .micro_batches = 2, .schedule = "1f1b"});
  const auto loss = nn::whole_batch("contrast", [](const at::Tensor& output, const at::Tensor&) {
    return output.square().mean().sqrt();
  });
  EXPECT_THAT(message_of<UsageError>([&] { pipeline.step(input(), target(), loss); }),
              AllOf(HasSubstr("'contrast'"), HasSubstr("1f1b"), HasSubstr("Use schedule 'gpipe'"),
                    HasSubstr("or a loss that is defined for each micro-batch")));
}

TEST(Options, AcceptOneDeviceForAllOrOnePerStage) {
  Pipeline one(chain(3), {.devices = virtual_devices(1), .balance = {2, 2, 1}});
  EXPECT_EQ(one.stage_count(), 3);
  EXPECT_EQ(one.device(2).torch, at::Device("virtual:0"));
  Pipeline plain(chain(3), {});
  EXPECT_EQ(plain.stage_count(), 1);
  EXPECT_EQ(plain.device(0).torch, at::kCPU);
  EXPECT_THAT(plain.balance(), ElementsAre(5));
  EXPECT_EQ(plain.stage_parameters(0).size(), plain.parameters().size());
}

TEST(Options, ModulesKeepTheirParameterObjects) {
  const nn::Layers net = chain(3);
  const auto before = net.named_parameters();
  Pipeline pipeline(net, {.devices = virtual_devices(2), .balance = {3, 2}});
  const auto after = pipeline.named_parameters();
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(before[i].first, after[i].first);
    EXPECT_TRUE(before[i].second.is_same(after[i].second));
  }
  EXPECT_EQ(after.back().second.device(), at::Device("virtual:1"));
}

// Runs a plan and compares it with the looped oracle.
void expect_same(PipelineOptions options, std::int64_t samples = 8) {
  const support::WatchDog dog("a plan");
  const auto expected = oracle::looped(chain(4), input(samples), target(samples),
                                       nn::cross_entropy(), options.micro_batches);
  for (const Recompute recompute : {Recompute::Never, Recompute::ExceptLast, Recompute::Always}) {
    SCOPED_TRACE(schedule::to_string(recompute));
    const nn::Layers net = chain(4);
    options.recompute = recompute;
    Pipeline pipeline(net, options);
    const auto result = pipeline.step(input(samples), target(samples), nn::cross_entropy());
    oracle::expect_same(expected, oracle::collect(net, result.loss, {}, input()));
    const at::Tensor output = pipeline.evaluate(input(samples));
    EXPECT_LT(distance(output, chain(4).forward(input(samples))), 1e-10);
    pipeline.zero_grad();
    const at::Tensor again = pipeline.forward(input(samples));
    torch::nn::functional::cross_entropy(again, target(samples).to(again.device())).backward();
    oracle::expect_same(expected, oracle::collect(net, result.loss, {}, input()));
  }
}

// Looped, breadth first: two ranks with two stages each.
constexpr auto looped = "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1\n";
// V: the last stage is on the first stage's rank, depth first.
constexpr auto v_shaped = "0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1\n1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n";

TEST(Tables, AllowTwoStagesPerRank) {
  const auto d = virtual_devices(2);
  expect_same({.devices = {d[0], d[1], d[0], d[1]},
               .balance = {2, 2, 2, 1},
               .micro_batches = 2,
               .plan = {.table = schedule::parse_csv(looped)}});
}

TEST(Tables, AllowVPlacement) {
  const auto d = virtual_devices(2);
  expect_same({.devices = {d[0], d[1], d[1], d[0]},
               .balance = {2, 2, 2, 1},
               .micro_batches = 2,
               .plan = {.table = schedule::parse_csv(v_shaped)}});
}

TEST(Tables, AllowStagesOfOneRankOnDifferentDevices) {
  expect_same({.devices = virtual_devices(4),
               .balance = {2, 2, 2, 1},
               .micro_batches = 2,
               .plan = {.table = schedule::parse_csv(v_shaped)}});
}

TEST(Tables, RunOnPlainCpu) {
  expect_same({.balance = {2, 2, 2, 1},
               .micro_batches = 2,
               .plan = {.table = schedule::parse_csv(looped)}});
}

TEST(Tables, RunBatchesWithOtherMicroBatchCounts) {
  const auto d = virtual_devices(2);
  expect_same({.devices = {d[0], d[1], d[0], d[1]},
               .balance = {2, 2, 2, 1},
               .micro_batches = 2,
               .plan = {.table = schedule::parse_csv(looped)}},
              1);
  expect_same({.devices = {d[0], d[1], d[1], d[0]},
               .balance = {2, 2, 2, 1},
               .micro_batches = 3,
               .plan = {.table = schedule::parse_csv(v_shaped)}});
}

TEST(Tables, RefuseTableThatDeadlocks) {
  const auto d = virtual_devices(2);
  EXPECT_THAT(message_of<UsageError>([&] {
                Pipeline(chain(3), {.devices = d,
                                    .balance = {3, 2},
                                    .micro_batches = 1,
                                    .plan = {.table = schedule::parse_csv("0F0,0B0\n1B0,1F0\n")}});
              }),
              HasSubstr("1B0"));
}

TEST(Placement, AllowsSeveralRanksOnOneDevice) {
  const auto d = virtual_devices(2);
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    expect_same({.devices = {d[1], d[1], d[0], d[1]},
                 .balance = {2, 2, 2, 1},
                 .micro_batches = 3,
                 .schedule = schedule});
  }
}

TEST(Placement, AllowsCpuBesideVirtualDevices) {
  const auto d = virtual_devices(1);
  expect_same({.devices = {d[0], cpu_device(), d[0], cpu_device()},
               .balance = {2, 2, 2, 1},
               .micro_batches = 3,
               .schedule = "1f1b"});
}

TEST(Placement, AllowsRecomputePerStage) {
  const nn::Layers net = chain(3);
  Pipeline pipeline(net, {.devices = virtual_devices(3),
                          .balance = {2, 2, 1},
                          .micro_batches = 2,
                          .plan = {.recompute_per_stage = {Recompute::Always, Recompute::Never,
                                                           Recompute::ExceptLast}}});
  std::vector<int> recomputed(3, 0);
  for (const auto& rank : pipeline.schedule().ranks) {
    for (const auto& action : rank)
      if (action.kind == schedule::Kind::Recompute) ++recomputed[action.stage];
  }
  EXPECT_THAT(recomputed, ElementsAre(2, 0, 1));
  const auto expected = oracle::looped(chain(3), input(), target(), nn::cross_entropy(), 2);
  const auto result = pipeline.step(input(), target(), nn::cross_entropy());
  oracle::expect_same(expected, oracle::collect(net, result.loss, {}, input()));
}

TEST(Placement, AllowsTwoPipelinesInOneProcess) {
  const support::WatchDog dog("two pipelines");
  const nn::Layers one = chain(3);
  const nn::Layers two = chain(4);
  const auto d = virtual_devices(2);
  Pipeline a(one, {.devices = d, .balance = {3, 2}, .micro_batches = 2});
  Pipeline b(two,
             {.devices = {d[1], d[0]}, .balance = {3, 4}, .micro_batches = 3, .schedule = "1f1b"});
  std::thread other([&] {
    for (int i = 0; i < 20; ++i) {
      b.zero_grad();
      b.step(input(), target(), nn::cross_entropy());
    }
  });
  for (int i = 0; i < 20; ++i) {
    a.zero_grad();
    a.step(input(), target(), nn::cross_entropy());
  }
  other.join();
  EXPECT_LT(oracle::difference(
                oracle::looped(chain(3), input(), target(), nn::cross_entropy(), 2).gradients,
                oracle::gradients_of(one.named_parameters())),
            oracle::rounding);
  EXPECT_LT(oracle::difference(
                oracle::looped(chain(4), input(), target(), nn::cross_entropy(), 3).gradients,
                oracle::gradients_of(two.named_parameters())),
            oracle::rounding);
}

// Layers that sleep 1, 2, ... 6 units, so that the best two stages have 4 and 2 layers. Units of 15
// ms keep other cuts far behind, since a sleep can last longer than requested.
nn::Layers sleepers() {
  nn::Layers net;
  for (int i = 1; i <= 6; ++i) {
    net.add("sleep" + std::to_string(i), [i](at::Tensor x) {
      std::this_thread::sleep_for(std::chrono::milliseconds(15 * i));
      return x * 1.0;
    });
  }
  return net;
}

TEST(MeasuredBalance, UsesGivenSample) {
  Pipeline pipeline(sleepers(), {.devices = virtual_devices(2), .plan = {.sample = {input()}}});
  EXPECT_THAT(pipeline.balance(), ElementsAre(4, 2));
}

TEST(MeasuredBalance, UsesFirstMiniBatch) {
  const nn::Layers net = chain(4);
  Pipeline pipeline(net, {.devices = virtual_devices(3), .micro_batches = 2});
  EXPECT_THAT(message_of<StateError>([&] { pipeline.balance(); }),
              HasSubstr("no mini-batch has been seen"));
  const auto result = pipeline.step(input(), target(), nn::cross_entropy());
  EXPECT_EQ(pipeline.stage_count(), 3);
  const auto& balance = pipeline.balance();
  EXPECT_EQ(std::accumulate(balance.begin(), balance.end(), 0), 7);
  const auto expected = oracle::looped(chain(4), input(), target(), nn::cross_entropy(), 2);
  oracle::expect_same(expected, oracle::collect(net, result.loss, {}, input()));
}

TEST(MeasuredBalance, LeavesBuffersUnchangedAndFitsOneLayerAtATime) {
  torch::manual_seed(1);
  nn::Layers net;
  net.add("one", torch::nn::Linear(64, 64));
  net.add("norm", torch::nn::BatchNorm1d(64));
  net.add("plain", torch::nn::InstanceNorm1d(64));  // has undefined buffers
  net.add("two", torch::nn::Linear(64, 64));
  const at::Tensor mean = net.graph().layers[1].module->buffers()[0].clone();
  // Enough for one layer's parameters (17 KiB), not for both.
  const auto devices = virtual_devices(2, 30 << 10);
  Pipeline pipeline(net, {.devices = devices, .plan = {.sample = {torch::randn({2, 64})}}});
  EXPECT_EQ(pipeline.stage_count(), 2);
  EXPECT_EQ(distance(mean, net.graph().layers[1].module->buffers()[0]), 0);
  EXPECT_EQ(budget(devices[0].torch), 30 << 10);
  virtual_devices(2);
}

}  // namespace
}  // namespace trestle
