// Selected plans on process ranks with Gloo give the bits of one process.
#include <gtest/gtest.h>

#include <thread>

#include "tests/pipeline/over_ranks.h"
#include "tests/pipeline/plain_training.h"
#include "tests/pipeline/rank_plans.h"
#include "tests/pipeline/rank_profiles.h"
#include "tests/pipeline/tied_ranks.h"
#include "tests/support/run_ranks.h"
#include "tests/support/virtual_environment.h"
#include "trestle/base/error.h"
#include "trestle/pipeline/find_nonfinite.h"

namespace trestle {
namespace {

using namespace ranks;

// Each process computes one process's outcome and compares its own part.
void check(const Net& net, const std::vector<RankPlan>& plans) {
  testing::run_process_ranks(plans.at(0).ranks(), [&](World& world) {
    for (const auto& plan : plans) {
      SCOPED_TRACE(name_of(net, plan));
      at::set_num_threads(1);
      const Outcome expected = in_one_process(net, plan);
      const Outcome own = on_rank(net, plan, world);
      at::Tensor parameters = at::tensor({static_cast<std::int64_t>(own.gradients.size())});
      world.group().all_reduce(parameters).wait();
      EXPECT_EQ(parameters.item<std::int64_t>(),
                static_cast<std::int64_t>(expected.gradients.size()));
      for (const auto& [name, gradient] : own.gradients) {
        EXPECT_EQ(gradient.defined(), expected.gradients.at(name).defined()) << name;
        if (gradient.defined()) {
          EXPECT_TRUE(at::equal(gradient, expected.gradients.at(name))) << name;
        }
      }
      for (const auto& [name, buffer] : own.buffers)
        EXPECT_TRUE(at::equal(buffer, expected.buffers.at(name))) << name;
      if (plan.use == Use::Step) {
        EXPECT_EQ(own.loss, expected.loss);
      }
      EXPECT_EQ(own.weight, expected.weight);
      if (own.output.defined()) {
        EXPECT_TRUE(at::equal(own.output, expected.output));
      }
    }
  });
}

TEST(RankProcesses, TrainUNetOnTwo) {
  const Net net = support::narrow_unet();
  const auto balance = support::even_balance(static_cast<int>(net.make().size()), 2);
  check(
      net,
      {{.balance = balance},
       {.balance = balance, .micro_batches = 5, .schedule = "1f1b", .recompute = Recompute::Always},
       {.balance = balance,
        .schedule = "1f1b",
        .recompute = Recompute::ExceptLast,
        .on = On::Virtual},
       {.balance = balance, .use = Use::CallersBackward},
       {.balance = balance,
        .recompute = Recompute::Always,
        .use = Use::CallersBackward,
        .on = On::Virtual}});
}

TEST(RankProcesses, TrainToyOnThree) {
  const Net net = support::toy(0.3);
  check(net,
        {{.balance = {4, 3, 3},
          .micro_batches = 5,
          .schedule = "1f1b",
          .recompute = Recompute::ExceptLast},
         {.balance = {2, 2, 2, 1, 2, 1}, .rank_of_stage = {0, 1, 2, 0, 1, 2}},
         {.balance = {2, 2, 2, 1, 2, 1}, .rank_of_stage = {0, 1, 2, 2, 1, 0}, .on = On::Virtual}});
}

// Two stages on a rank in a loop and in a V, backwards in two halves, and overlapped pairs.
TEST(RankProcesses, TrainToyUnderSchedulesOfEveryKind) {
  const Net net = support::toy(0.3);
  std::vector<RankPlan> plans = {plan_of("zb_h1", {5, 5}, 2, 4)};
  for (const char* schedule :
       {"looped_bfs", "interleaved_1f1b", "interleaved_zero_bubble", "zbv", "v_half", "dualpipev"})
    plans.push_back(plan_of(schedule, {3, 2, 3, 2}, 2, 4));
  plans[2].on = plans[4].on = On::Virtual;
  check(net, plans);
}

TEST(RankProcesses, TrainTiedWeightsAsPlainTorch) {
  testing::run_process_ranks(3, [](World& world) {
    at::set_num_threads(1);
    const tied::Training training{.ties = tied::Ties::Three, .max_norm = 0.3};
    auto options = tied::options_of(training, tied::cut_for(3));
    options.schedule = "1f1b";
    tied::expect_training_over_ranks(world, training, options);
    options.devices = {virtual_devices(3)[static_cast<std::size_t>(world.rank())]};
    tied::expect_callers_training_over_ranks(world, training, options);
  });
}

TEST(RankProcesses, UpdateWeightsToBitsOfOneProcess) {
  testing::run_process_ranks(2, [](World& world) {
    at::set_num_threads(1);
    const plain::Training training{.max_norm = 0.2};
    PipelineOptions options = plain::options_of(training);
    options.balance = {3, 2};
    options.schedule = "1f1b";
    Pipeline alone(plain::make_net(), options);
    const plain::Outcome expected = plain::train(alone, training);
    options.group = world.group();
    Pipeline pipeline(plain::make_net(), options);
    plain::expect_same(
        expected, plain::train(pipeline, training, world.rank() == 0, world.rank() == 1), 1e-300);
  });
}

TEST(RankProcesses, MessagesGrowAndShrinkFromCallToCall) {
  testing::run_process_ranks(2, support::expect_plain_numbers_for_changing_messages);
}

// Gloo closes the connections of a receive that took too long. Both ranks still have the reason.
TEST(RankProcesses, NameRankThatIsLateInALaterStep) {
  const auto processes = testing::run_rank_processes(2, [] {
    World world = init({.deadline = std::chrono::seconds(30)});
    int calls = 0;
    nn::Layers net(nn::Seed{3});
    net.add("first", [] { return torch::nn::Linear(4, 4); });
    net.add("second", [&](at::Tensor x) {
      if (++calls > 4) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      return x.tanh();
    });
    PipelineOptions options{.balance = {1, 1}, .micro_batches = 2};
    options.group = world.group();
    options.deadline = std::chrono::milliseconds(500);
    Pipeline pipeline(net, options);
    const at::Tensor x = torch::ones({4, 4});
    try {
      for (int step = 0; step < 3; ++step)
        pipeline.step(world.rank() == 0 ? x : at::Tensor(), world.rank() == 1 ? x : at::Tensor(),
                      nn::mean_squared_error());
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("rank 0 waited 500 ms for the gradient of micro"),
                std::string::npos)
          << error.what();
    }
  });
  for (const auto& process : processes) EXPECT_EQ(process.exit_code, 0) << process.output;
}

TEST(RankProcesses, ReportMissingBackward) {
  const auto processes = testing::run_rank_processes(2, [] {
    World world = init({.deadline = std::chrono::seconds(30)});
    nn::Layers net;
    net.add("first", [] { return torch::nn::Linear(4, 4); });
    net.add("second", [] { return torch::nn::Linear(4, 4); });
    PipelineOptions options{.balance = {1, 1}};
    options.group = world.group();
    Pipeline pipeline(net, options);
    const at::Tensor output = pipeline.forward(torch::ones({4, 4}));
    if (world.rank() == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const auto begin = std::chrono::steady_clock::now();
    try {
      pipeline.backward(output.sum());
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what())
                    .find("rank 0 has left, having last reported 'returned from forward(), its "
                          "backward() is to come', but rank 1 waits for it in send"),
                std::string::npos)
          << error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  });
  for (const auto& process : processes) EXPECT_EQ(process.exit_code, 0) << process.output;
}

TEST(RankProcesses, TrainUNetOnFour) {
  const Net net = support::narrow_unet();
  const auto balance = support::even_balance(static_cast<int>(net.make().size()), 4);
  check(net, {{.balance = balance, .schedule = "1f1b"},
              {.balance = balance, .use = Use::CallersBackward}});
}

// A profile over Gloo equals one process's, and predictions from it hold.
TEST(RankProcesses, ProfileUNetOnThree) {
  const Net net = support::narrow_unet();
  const RankPlan plan{.balance = support::even_balance(static_cast<int>(net.make().size()), 3),
                      .schedule = "1f1b",
                      .recompute = Recompute::ExceptLast,
                      .on = On::Virtual};
  const nn::Loss& loss = net.one_f_one_b_loss;
  testing::run_process_ranks(3, [&](World& world) {
    at::set_num_threads(1);
    nn::Layers model = net.make();
    Pipeline pipeline(model, rank_options(plan, world));
    const Given given = given_to(net, plan, world);
    pipeline.step(given.input, given.target, loss);
    const auto gradients = oracle::gradients_of(pipeline.named_parameters());
    const auto costs = pipeline.profile({given.input}, given.target, loss);
    expect_same_bits(gradients, oracle::gradients_of(pipeline.named_parameters()));
    pipeline.zero_grad();
    expect_same_bytes(measured_alone(net, plan, loss, 1),
                      pipeline.profile({given.input}, given.target, loss));
    const auto rank = static_cast<std::size_t>(world.rank());
    const Bytes predicted = pipeline.predict(costs).device_peak_bytes.at(rank);
    const at::Device own = device_of(world).torch;
    world.group().barrier();
    reset_peak_memory(own);
    for (int step = 0; step < 3; ++step) pipeline.step(given.input, given.target, loss);
    EXPECT_LE(memory_usage(own).peak, predicted);
  });
}

TEST(RankProcesses, NameNonFiniteParameterOnAllRanks) {
  const Net net = support::narrow_unet();
  const RankPlan plan{.balance = support::even_balance(static_cast<int>(net.make().size()), 3)};
  testing::run_process_ranks(3, [&](World& world) {
    nn::Layers model = net.make();
    Pipeline pipeline(model, rank_options(plan, world));
    const Given given = given_to(net, plan, world);
    pipeline.step(given.input, given.target, net.loss);
    EXPECT_EQ(find_nonfinite({given.input}, pipeline),
              "the outputs of all layers are finite, and the loss is not");
    EXPECT_EQ(find_nonfinite_gradient(pipeline), "");
    std::string spoilt;
    if (world.rank() == 1) {
      const at::NoGradGuard no_grad;
      auto [name, parameter] = pipeline.named_parameters().front();
      parameter.fill_(1.0 / 0.0);
      spoilt = text("parameter '", name, "' (rank 1, stage 1) has values that are infinite or NaN");
    }
    spoilt = world.group().broadcast_bytes(spoilt, 1);
    EXPECT_EQ(find_nonfinite({given.input}, pipeline), spoilt);
  });
}

}  // namespace
}  // namespace trestle
