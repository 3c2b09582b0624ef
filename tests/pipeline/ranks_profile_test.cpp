// profile() over ranks equals one process's on every rank, and predictions hold on each rank's
// device.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "tests/pipeline/conv_net.h"
#include "tests/pipeline/excess.h"
#include "tests/pipeline/rank_profiles.h"
#include "tests/support/virtual_environment.h"
#include "trestle/comm/threads/spawn.h"

namespace trestle {
namespace {

using namespace std::chrono_literals;
using namespace ranks;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Expects equal costs on both ranks, including equal bits of the times.
void expect_same(const simulate::Costs& a, const simulate::Costs& b) {
  expect_same_bytes(a, b);
  for (std::size_t s = 0; s < a.stages.size(); ++s)
    for (const auto time : all_times) EXPECT_EQ(a.stages[s].*time, b.stages[s].*time);
  for (std::size_t r = 0; r < a.routes.size(); ++r)
    EXPECT_EQ(a.routes[r].seconds, b.routes[r].seconds);
  EXPECT_EQ(a.device_of_stage, b.device_of_stage);
}

void check_profile(const Net& net, const RankPlan& plan) {
  SCOPED_TRACE(name_of(net, plan));
  const support::WatchDog watch(name_of(net, plan), 60s);
  const auto alone = measured_alone(net, plan, net.loss);
  struct Measured {
    simulate::Costs costs;
    schedule::Timeline predicted;
  };
  const auto all = spawn(plan.ranks(),
                         [&](World& world) -> Measured {
                           nn::Layers model = net.make();
                           Pipeline pipeline(model, rank_options(plan, world));
                           const Given given = given_to(net, plan, world);
                           const auto costs =
                               pipeline.profile({given.input}, given.target, net.loss);
                           return {costs, pipeline.predict(costs)};
                         },
                         {.deadline = 20s});
  expect_same_bytes(alone, all[0].costs);
  EXPECT_EQ(all[0].costs.transfer_mode, simulate::TransferMode::Prefetch);
  EXPECT_EQ(all[0].costs.concurrency, simulate::Concurrency::EachRank);
  EXPECT_EQ(all[0].predicted.micro_batches, plan.micro_batches);
  const auto& device_of_stage = all[0].costs.device_of_stage;
  for (std::size_t s = 0; s < plan.balance.size(); ++s) {
    for (std::size_t t = 0; t < s; ++t) {
      const auto rank = [&](std::size_t stage) {
        return plan.rank_of_stage.empty() ? static_cast<int>(stage) : plan.rank_of_stage[stage];
      };
      EXPECT_EQ(device_of_stage[s] == device_of_stage[t], rank(s) == rank(t));
    }
  }
  for (const auto& other : all) {
    expect_same(all[0].costs, other.costs);
    EXPECT_EQ(schedule::makespan(all[0].predicted), schedule::makespan(other.predicted));
    EXPECT_EQ(all[0].predicted.device_peak_bytes, other.predicted.device_peak_bytes);
  }
  for (std::size_t r = 0; r < alone.routes.size(); ++r) {
    const auto& route = all[0].predicted.routes[r];
    if (all[0].costs.device_of_stage[static_cast<std::size_t>(route.from_stage)] !=
        all[0].costs.device_of_stage[static_cast<std::size_t>(route.to_stage)]) {
      EXPECT_GT(all[0].costs.routes[r].seconds, 0) << "route " << r;
    }
  }
}

TEST(RanksProfile, HasBytesOfOneProcess) {
  const Net toy = support::toy(0.3);
  check_profile(toy, {.balance = {5, 5}, .on = On::Virtual});
  check_profile(toy, {.balance = {4, 3, 3}, .schedule = "1f1b"});
  const Net unet = support::narrow_unet();
  const int layers = static_cast<int>(unet.make().size());
  check_profile(unet, {.balance = support::even_balance(layers, 2), .on = On::Virtual});
  check_profile(unet, {.balance = support::even_balance(layers, 4),
                       .micro_batches = 5,
                       .recompute = Recompute::ExceptLast,
                       .on = On::Virtual});
}

TEST(RanksProfile, HasBytesOfOneProcessInAnyPlacement) {
  const Net toy = support::toy(0.3);
  for (const On on : {On::Cpu, On::Virtual}) {
    check_profile(toy, {.balance = {3, 2, 3, 2}, .rank_of_stage = {0, 1, 1, 0}, .on = on});
    check_profile(toy, {.balance = {3, 2, 3, 2}, .rank_of_stage = {2, 0, 1, 0}, .on = on});
  }
  const Net resnet = support::flat_resnet();
  check_profile(resnet,
                {.balance = support::even_balance(static_cast<int>(resnet.make().size()), 6),
                 .rank_of_stage = {0, 1, 2, 2, 1, 0},
                 .on = On::Virtual});
}

// Profiling must not advance random generators: the next step's dropout would change.
TEST(RanksProfile, LeavesModelAndStepUnchanged) {
  const support::WatchDog watch("leaves everything", 60s);
  const Net net = support::narrow_unet();
  const RankPlan plan{.balance = support::even_balance(static_cast<int>(net.make().size()), 3),
                      .recompute = Recompute::ExceptLast,
                      .on = On::Virtual};
  const auto run = [&](bool profiles) {
    return spawn(3, [&](World& world) {
      nn::Layers model = net.make();
      Pipeline pipeline(model, rank_options(plan, world));
      const Given given = given_to(net, plan, world);
      pipeline.step(given.input, given.target, net.loss);
      world.group().barrier();
      const auto generator = at::detail::getDefaultCPUGenerator();
      const at::Tensor drawn_from = generator.get_state();
      const auto parameters = oracle::to_map(pipeline.named_parameters());
      const auto gradients = oracle::gradients_of(pipeline.named_parameters());
      const auto buffers = oracle::to_map(pipeline.named_buffers());
      const Bytes held = memory_usage(device_of(world).torch).current;
      const auto number = pipeline.step_number();
      for (int times = 0; profiles && times < 2; ++times)
        EXPECT_TRUE(pipeline.profile({given.input}, given.target, net.loss).gradients_at_start);
      world.group().barrier();
      expect_same_bits(parameters, oracle::to_map(pipeline.named_parameters()));
      expect_same_bits(gradients, oracle::gradients_of(pipeline.named_parameters()));
      expect_same_bits(buffers, oracle::to_map(pipeline.named_buffers()));
      EXPECT_TRUE(at::equal(drawn_from, generator.get_state()));
      EXPECT_EQ(held, memory_usage(device_of(world).torch).current);
      EXPECT_EQ(number, pipeline.step_number());
      const double loss = pipeline.step(given.input, given.target, net.loss).loss;
      pipeline.zero_grad();
      if (profiles) {
        EXPECT_FALSE(pipeline.profile({given.input}, given.target, net.loss).gradients_at_start);
        for (const auto& parameter : pipeline.parameters())
          EXPECT_FALSE(parameter.grad().defined());
      }
      return loss;
    });
  };
  EXPECT_EQ(run(true), run(false));
}

// Boundary values are a large share of what a stage keeps, among them a view, a transposed value
// and skips.
nn::Layers wide_factories() {
  nn::Layers net(nn::Seed{3});
  net.add("up", [] { return torch::nn::Linear(64, 256); });
  net.add("half", [](at::Tensor x) { return x.narrow(1, 0, 192); }).keep_output("skip");
  net.add("relu", [](at::Tensor x) { return x.relu(); });
  net.add("across", [] { return torch::nn::Linear(192, 128); });
  net.add("there", [](at::Tensor x) { return x.reshape({-1, 8, 16}).transpose(1, 2); });
  net.add("back", [](at::Tensor x) { return x.transpose(1, 2).flatten(1); });
  net.add("join",
          [](at::Tensor x, at::Tensor skip) {
            return torch::cat({x, skip}, 1);
          })
      .take("skip");
  net.add("down", [] { return torch::nn::Linear(320, 64); });
  return net;
}

// Steps with new gradients, and steps with existing ones.
void compare_peaks(const Net& net, const RankPlan& plan, support::Excess* excess) {
  struct Peak {
    Bytes predicted = 0, measured = 0;
  };
  const nn::Loss& loss = plan.schedule == "1f1b" ? net.one_f_one_b_loss : net.loss;
  const auto all = spawn(plan.ranks(), [&](World& world) {
    nn::Layers model = net.make();
    Pipeline pipeline(model, rank_options(plan, world));
    const Given given = given_to(net, plan, world);
    const at::Device own = device_of(world).torch;
    std::vector<Peak> peaks;
    for (const bool kept : {false, true}) {
      pipeline.step(given.input, given.target, loss);
      if (!kept) pipeline.zero_grad();
      const auto costs = pipeline.profile({given.input}, given.target, loss);
      const auto stage =
          std::find(plan.rank_of_stage.begin(), plan.rank_of_stage.end(), world.rank()) -
          plan.rank_of_stage.begin();
      const auto device = static_cast<std::size_t>(costs.device_of_stage.at(
          plan.rank_of_stage.empty() ? static_cast<std::size_t>(world.rank())
                                     : static_cast<std::size_t>(stage)));
      Peak peak{.predicted = pipeline.predict(costs).device_peak_bytes.at(device)};
      reset_peak_memory(own);
      for (int step = 0; step < 3; ++step) {
        pipeline.step(given.input, given.target, loss);
        if (!kept) pipeline.zero_grad();
      }
      peak.measured = memory_usage(own).peak;
      peaks.push_back(peak);
    }
    return peaks;
  });
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const Peak& peak : all[rank]) {
      EXPECT_LE(peak.measured, peak.predicted) << name_of(net, plan) << ", rank " << rank;
      excess->add(peak.predicted, peak.measured);
    }
  }
}

void expect_bound(const Net& net, const std::vector<RankPlan>& plans, double most_on_average) {
  support::Excess excess;
  for (RankPlan plan : plans) {
    plan.on = On::Virtual;
    for (const std::string schedule : {"gpipe", "1f1b"}) {
      if (!plan.rank_of_stage.empty() && schedule != "gpipe") continue;
      for (const Recompute recompute : support::all_modes) {
        plan.schedule = schedule;
        plan.recompute = recompute;
        compare_peaks(net, plan, &excess);
      }
    }
  }
  excess.expect_tight(net.name, most_on_average);
}

at::Tensor wide_rows(std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn({1024, 64});
}

TEST(RanksProfile, BoundsPeaksWithWideBoundaries) {
  const support::WatchDog watch("wide", 120s);
  const Net net{.name = "wide",
                .make = wide_factories,
                .input = wide_rows(1),
                .target = wide_rows(2),
                .loss = nn::mean_squared_error(),
                .one_f_one_b_loss = nn::mean_squared_error()};
  expect_bound(net,
               {{.balance = {3, 5}},
                {.balance = {2, 1, 2, 3}},
                {.balance = {2, 1, 2, 3}, .rank_of_stage = {0, 1, 1, 0}}},
               1.6);
}

TEST(RanksProfile, BoundsPeaksWithConvolutions) {
  const support::WatchDog watch("convolutions", 120s);
  const Net net{.name = "convolutions",
                .make = [] { return support::conv_net(); },
                .input = support::images(16),
                .target = support::labels(16),
                .loss = nn::cross_entropy(),
                .one_f_one_b_loss = nn::cross_entropy()};
  expect_bound(net, {{.balance = {3, 4, 5}}}, 1.4);
}

TEST(RanksProfile, LayerErrorReachesAllRanks) {
  const support::WatchDog watch("a layer that fails");
  for (const bool in_backward : {false, true}) {
    const auto all = spawn(
        3,
        [&](World& world) -> std::string {
          nn::Layers net(nn::Seed{3});
          net.add("first", [] { return torch::nn::Linear(4, 4); });
          net.add("second", [in_backward](at::Tensor x) -> at::Tensor {
            if (!in_backward) throw std::runtime_error("out of order");
            at::Tensor y = x * 1;
            if (y.requires_grad())
              y.register_hook([](const at::Tensor&) { throw std::runtime_error("out of order"); });
            return y;
          });
          net.add("third", [] { return torch::nn::Linear(4, 4); });
          Pipeline pipeline(net,
                            {.group = world.group(), .balance = {1, 1, 1}, .micro_batches = 2});
          try {
            pipeline.profile({world.rank() == 0 ? torch::ones({4, 4}) : at::Tensor()},
                             world.rank() == 2 ? torch::ones({4, 4}) : at::Tensor(),
                             nn::mean_squared_error());
          } catch (const std::exception& error) {
            return error.what();
          }
          return "";
        },
        {.deadline = 20s});
    for (const auto& message : all) EXPECT_THAT(message, HasSubstr("out of order"));
    for (const int other : {0, 2})
      EXPECT_THAT(all[static_cast<std::size_t>(other)], HasSubstr("rank 1"));
  }
}

TEST(RanksProfile, NamesRankWithDifferentCall) {
  const support::WatchDog watch("something else");
  const auto all = spawn(2, [&](World& world) -> std::string {
    nn::Layers net = support::chain(2);
    Pipeline pipeline(net, {.group = world.group(), .balance = {1, 2}, .micro_batches = 2});
    const at::Tensor x = world.rank() == 0 ? support::input() : at::Tensor();
    const at::Tensor y = world.rank() == 1 ? support::target() : at::Tensor();
    try {
      if (world.rank() == 0)
        pipeline.profile({x}, y, nn::cross_entropy());
      else
        pipeline.step(x, y, nn::cross_entropy());
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  });
  for (const auto& message : all)
    EXPECT_THAT(message, HasSubstr("step() on rank 1, profile() on rank 0"));
}

// All ranks know the budgets of all devices, so all suggest the same.
TEST(RanksProfile, SuggestsSameFitOnAllRanks) {
  const support::WatchDog watch("what would fit");
  const at::Tensor x = wide_rows(1), y = wide_rows(2);
  const auto all = spawn(2, [&](World& world) -> std::string {
    Device own = device_of(world);
    std::string words;
    for (Bytes peak = 0, again = 0; again < 2; ++again) {
      own.budget = world.rank() == 0 ? 0 : peak * 2 / 3;
      Pipeline pipeline(
          wide_factories(),
          {.group = world.group(), .devices = {own}, .balance = {3, 5}, .micro_batches = 1});
      const auto costs =
          pipeline.profile({world.rank() == 0 ? x : at::Tensor()},
                           world.rank() == 1 ? y : at::Tensor(), nn::mean_squared_error());
      peak = pipeline.predict(costs).device_peak_bytes.at(1);
      words = pipeline.suggest_fit();
    }
    set_budget(own.torch, 0);
    return words;
  });
  EXPECT_THAT(all[1], AllOf(HasSubstr("would fit"), HasSubstr("micro_batches")));
  EXPECT_EQ(all[0], all[1]);
}

}  // namespace
}  // namespace trestle
