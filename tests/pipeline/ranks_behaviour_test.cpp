// A pipeline over ranks beyond one step: many steps, changing shapes, several inputs, whole-batch
// losses, evaluation, memory between steps. P1-P23 are the behaviours of docs/ranks_conformance.md,
// which torch.distributed.pipelining is tested for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/gradient_nets.h"
#include "tests/pipeline/over_ranks.h"
#include "tests/pipeline/support.h"
#include "tests/support/virtual_environment.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/optim/clip_grad_norm.h"
#include "trestle/pipeline/pipeline.h"

namespace trestle {
namespace {

using namespace std::chrono_literals;
using support::is_last;
using support::Net;
using support::over;

constexpr auto deadline = 20s;

// Linear layers of one width as factories, in double precision.
nn::Layers linears(int count, std::int64_t width = 6) {
  nn::Layers net(nn::Seed{11});
  for (int i = 0; i < count; ++i)
    net.add("linear" + std::to_string(i), [width] {
      torch::nn::Linear linear(width, width);
      linear->to(at::kDouble);
      return linear;
    });
  return net;
}

at::Tensor rows(std::int64_t count, std::int64_t width = 6) {
  return torch::arange(count * width, at::kDouble).reshape({count, width}).sin();
}

void descend(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.05);
  }
}

// P1
TEST(RanksPipeline, DoesNotDriftOverManySteps) {
  const Net net = support::toy(0.3);
  const support::WatchDog watch("twenty steps", 60s);
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    nn::Layers alone = net.make();
    Pipeline pipeline(
        alone,
        {.balance = {4, 3, 3}, .micro_batches = 4, .schedule = schedule, .numerics = {.seed = 3}});
    std::vector<double> expected;
    for (int step = 0; step < 20; ++step) {
      pipeline.zero_grad();
      expected.push_back(pipeline.step(net.input, net.target, net.loss).loss);
      descend(pipeline.parameters());
    }
    const auto losses = spawn(3, [&](World& world) {
      nn::Layers model = net.make();
      Pipeline own(model, over(world, {.balance = {4, 3, 3},
                                       .micro_batches = 4,
                                       .schedule = schedule,
                                       .numerics = {.seed = 3}}));
      std::vector<double> result;
      for (int step = 0; step < 20; ++step) {
        own.zero_grad();
        result.push_back(own.step(world.rank() == 0 ? net.input : at::Tensor(),
                                  is_last(world) ? net.target : at::Tensor(), net.loss)
                             .loss);
        descend(own.parameters());
      }
      return result;
    });
    for (const auto& rank : losses) EXPECT_EQ(rank, expected);
  }
}

// P3
TEST(RanksPipeline, SeveralInputsReachTheirStages) {
  const support::WatchDog watch("several inputs");
  nn::Layers inner(nn::Seed{5}, 2);
  inner.add("add", [](at::Tensor x, at::Tensor y) { return x + 2 * y; });
  inner.add("square", [](at::Tensor x) { return x * x; });
  const at::Tensor expected = (rows(5) + 2 * rows(5).cos()).square();
  spawn(2, [&](World& world) {
    Pipeline pipeline(inner, over(world, {.balance = {1, 1}, .micro_batches = 2}));
    const bool first = world.rank() == 0;
    const auto outputs = pipeline.evaluate(
        nn::Values{first ? rows(5) : at::Tensor(), first ? rows(5).cos() : at::Tensor()});
    if (is_last(world)) {
      EXPECT_TRUE(at::allclose(outputs[0], expected));
    }
  });
}

TEST(RanksPipeline, AcceptsBatchesOfAnySize) {
  const support::WatchDog watch("ragged batches");
  const nn::Loss loss = nn::mean_squared_error();
  const std::vector<std::int64_t> sizes = {7, 3, 1, 12, 2};
  nn::Layers alone = linears(3);
  Pipeline pipeline(alone, {.balance = {1, 1, 1}, .micro_batches = 4});
  std::vector<double> expected;
  for (const auto size : sizes)
    expected.push_back(pipeline.step(rows(size), rows(size).cos(), loss).loss);
  const auto losses = spawn(3, [&](World& world) {
    Pipeline own(linears(3), over(world, {.balance = {1, 1, 1}, .micro_batches = 4}));
    std::vector<double> result;
    for (const auto size : sizes)
      result.push_back(own.step(world.rank() == 0 ? rows(size) : at::Tensor(),
                                is_last(world) ? rows(size).cos() : at::Tensor(), loss)
                           .loss);
    return result;
  });
  for (const auto& rank : losses) EXPECT_EQ(rank, expected);
}

// P5, P6: width, dtype and memory format may change from call to call.
TEST(RanksPipeline, AcceptsChangingShapesDtypesAndMemoryFormats) {
  const support::WatchDog watch("changing shapes");
  const auto net = [] {
    nn::Layers layers;
    layers.add("a", [](at::Tensor x) { return x * 2; });
    layers.add("b", [](at::Tensor x) { return x + 1; });
    return layers;
  };
  const std::vector<at::Tensor> inputs = {
      rows(4),
      rows(3, 700),
      torch::arange(10).reshape({5, 2}),
      torch::ones({2, 3, 40, 50}).contiguous(at::MemoryFormat::ChannelsLast),
      torch::ones({4}) > 0,
      torch::randn({2, 5}).to(at::kBFloat16)};
  spawn(2, [&](World& world) {
    Pipeline pipeline(net(), over(world, {.balance = {1, 1}, .micro_batches = 2}));
    for (const auto& input : inputs) {
      const at::Tensor output = pipeline.evaluate(world.rank() == 0 ? input : at::Tensor());
      ASSERT_EQ(output.defined(), is_last(world));
      if (!is_last(world)) continue;
      EXPECT_TRUE(at::equal(output, input * 2 + 1));
      EXPECT_EQ(output.scalar_type(), (input * 2 + 1).scalar_type());
      EXPECT_EQ(output.strides(), (input * 2 + 1).strides());
    }
  });
}

// P19: None in one micro-batch, a value in another; integers beside gradients.
TEST(RanksPipeline, SendsNoneAndIntegers) {
  const support::WatchDog watch("None and integers");
  const auto net = [] {
    nn::Layers layers = linears(1);
    layers.add("split", [](at::Tensor x) {
      const bool some = x[0][0].item<double>() > 0.1;
      return std::make_tuple(x, x.argmax(1), some ? x * 3 : at::Tensor());
    });
    layers.add("join", [](at::Tensor x, at::Tensor index, at::Tensor extra) {
      const at::Tensor chosen = x.gather(1, index.unsqueeze(1)) + x;
      return extra.defined() ? chosen + extra : chosen;
    });
    return layers;
  };
  const nn::Loss loss = nn::mean_squared_error();
  nn::Layers alone = net();
  Pipeline pipeline(alone, {.balance = {2, 1}, .micro_batches = 4, .schedule = "1f1b"});
  const double expected = pipeline.step(rows(8), rows(8), loss).loss;
  const auto gradients = oracle::gradients_of(pipeline.named_parameters());
  spawn(2, [&](World& world) {
    Pipeline own(net(), over(world, {.balance = {2, 1}, .micro_batches = 4, .schedule = "1f1b"}));
    const auto result = own.step(world.rank() == 0 ? rows(8) : at::Tensor(),
                                 is_last(world) ? rows(8) : at::Tensor(), loss);
    EXPECT_EQ(result.loss, expected);
    for (const auto& [name, gradient] : oracle::gradients_of(own.named_parameters()))
      EXPECT_TRUE(at::equal(gradient, gradients.at(name))) << name;
  });
}

TEST(RanksPipeline, SupportsWholeBatchLoss) {
  const support::WatchDog watch("whole-batch loss");
  const nn::Loss loss = nn::whole_batch("spread", [](const at::Tensor& y, const at::Tensor&) {
    return (y - y.mean(0, true)).square().sum();
  });
  nn::Layers alone = linears(2);
  Pipeline pipeline(alone, {.balance = {1, 1}, .micro_batches = 3});
  const double expected = pipeline.step(rows(7), {}, loss).loss;
  const auto gradients = oracle::gradients_of(pipeline.named_parameters());
  spawn(2, [&](World& world) {
    Pipeline own(linears(2), over(world, {.balance = {1, 1}, .micro_batches = 3}));
    EXPECT_EQ(own.step(world.rank() == 0 ? rows(7) : at::Tensor(), {}, loss).loss, expected);
    for (const auto& [name, gradient] : oracle::gradients_of(own.named_parameters()))
      EXPECT_TRUE(at::equal(gradient, gradients.at(name))) << name;
  });
}

// P15
TEST(RanksPipeline, SupportsOneStageOnOneRank) {
  const nn::Loss loss = nn::mean_squared_error();
  Pipeline alone(linears(2), {.micro_batches = 3});
  const double expected = alone.step(rows(7), rows(7).cos(), loss).loss;
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    spawn(1, [&](World& world) {
      Pipeline own(linears(2),
                   over(world, {.balance = {2}, .micro_batches = 3, .schedule = schedule}));
      EXPECT_EQ(own.step(rows(7), rows(7).cos(), loss).loss, expected);
    });
  }
}

// P4, P16: evaluation between steps on one object, and outputs that become inputs.
TEST(RanksPipeline, AlternatesEvaluationAndTraining) {
  const support::WatchDog watch("evaluate and train");
  const Net net = support::toy(0.3);
  nn::Layers alone = net.make();
  Pipeline pipeline(alone, {.balance = {4, 6}, .micro_batches = 3, .numerics = {.seed = 3}});
  const at::Tensor before = pipeline.evaluate(net.input);
  pipeline.step(net.input, net.target, net.loss);
  descend(pipeline.parameters());
  const at::Tensor after = pipeline.evaluate(net.input);
  ASSERT_FALSE(at::equal(before, after));
  spawn(2, [&](World& world) {
    nn::Layers model = net.make();
    Pipeline own(model,
                 over(world, {.balance = {4, 6}, .micro_batches = 3, .numerics = {.seed = 3}}));
    const at::Tensor input = world.rank() == 0 ? net.input : at::Tensor();
    const at::Tensor first = own.evaluate(input);
    own.step(input, is_last(world) ? net.target : at::Tensor(), net.loss);
    descend(own.parameters());
    const at::Tensor second = own.evaluate(input);
    if (!is_last(world)) return;
    EXPECT_TRUE(at::equal(first, before));
    EXPECT_TRUE(at::equal(second, after));
  });
}

TEST(RanksPipeline, AcceptsItsOutputsAsInputs) {
  const support::WatchDog watch("outputs fed back");
  nn::Layers plain = linears(2);
  at::Tensor expected = rows(4);
  const at::NoGradGuard no_grad;
  for (int i = 0; i < 20; ++i) expected = plain.forward(expected);
  spawn(2, [&](World& world) {
    Pipeline pipeline(linears(2), over(world, {.balance = {1, 1}, .micro_batches = 2}));
    at::Tensor x = rows(4);
    for (int i = 0; i < 20; ++i) {
      at::Tensor y = pipeline.evaluate(world.rank() == 0 ? x : at::Tensor());
      if (is_last(world)) x = y;
      world.group().broadcast(x, 1).wait();
    }
    EXPECT_LT((x - expected).abs().max().item<double>(), 1e-12);
  });
}

// Item 5: a rank creates only its own layers, under unsplit names and with the unsplit model's
// weights.
TEST(RanksPipeline, CreatesOnlyStagesOfOwnRank) {
  const support::WatchDog watch("own stages");
  std::map<std::string, at::Tensor> expected;
  for (const auto& [name, parameter] : linears(6, 64).named_parameters())
    expected[name] = parameter;
  constexpr std::int64_t layer_bytes = (64 * 64 + 64) * 8;
  spawn(3, [&](World& world) {
    const auto own = virtual_devices(4)[static_cast<std::size_t>(world.rank())];
    reset_peak_memory(own.torch);
    const Bytes before = memory_usage(own.torch).current;
    nn::Layers net = linears(6, 64);
    Pipeline pipeline(net,
                      over(world, {.devices = {own}, .balance = {1, 2, 3}, .micro_batches = 2}));
    const auto graph = net.graph();
    const int first = world.rank() == 0 ? 0 : world.rank() == 1 ? 1 : 3;
    const int count = world.rank() + 1;
    for (int i = 0; i < 6; ++i)
      EXPECT_EQ(graph.layers[static_cast<std::size_t>(i)].module.made() != nullptr,
                i >= first && i < first + count)
          << "layer " << i << " on rank " << world.rank();
    const auto parameters = pipeline.named_parameters();
    EXPECT_EQ(parameters.size(), static_cast<std::size_t>(2 * count));
    for (const auto& [name, parameter] : parameters)
      EXPECT_TRUE(at::equal(parameter.cpu(), expected.at(name))) << name;
    EXPECT_LE(memory_usage(own.torch).peak - before, count * layer_bytes + 4096);
  });
}

TEST(RanksPipeline, MeasuresBalanceOnceAndBroadcastsIt) {
  const support::WatchDog watch("measured balance");
  const auto balances = spawn(2, [](World& world) {
    Pipeline pipeline(linears(5), over(world, {.micro_batches = 2, .plan = {.sample = {rows(4)}}}));
    return pipeline.balance();
  });
  ASSERT_EQ(balances[0].size(), 2U);
  EXPECT_EQ(balances[0], balances[1]);
  EXPECT_EQ(balances[0][0] + balances[0][1], 5);
}

TEST(RanksPipeline, MeasuringBalanceKeepsOnlyOwnLayers) {
  const support::WatchDog watch("measured balance, layers made");
  spawn(2, [](World& world) {
    nn::Layers net = linears(5);
    Pipeline pipeline(net, over(world, {.micro_batches = 2, .plan = {.sample = {rows(4)}}}));
    const auto graph = net.graph();
    const auto own = pipeline.balance()[static_cast<std::size_t>(world.rank())];
    const int first = world.rank() == 0 ? 0 : pipeline.balance()[0];
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(graph.layers[static_cast<std::size_t>(i)].module.made() != nullptr,
                i >= first && i < first + own)
          << "layer " << i << " on rank " << world.rank();
  });
}

TEST(RanksPipeline, ClipsByNormOfAllGradients) {
  const support::WatchDog watch("clipping");
  const nn::Loss loss = nn::mean_squared_error();
  for (const double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    nn::Layers alone = linears(3);
    Pipeline pipeline(alone, {.balance = {1, 1, 1}, .micro_batches = 2});
    pipeline.step(rows(6), rows(6) * 9, loss);
    const double norm = pipeline.clip_grad_norm(0.1, {.p = p});
    const auto expected = oracle::gradients_of(pipeline.named_parameters());
    spawn(3, [&](World& world) {
      Pipeline own(linears(3), over(world, {.balance = {1, 1, 1}, .micro_batches = 2}));
      own.step(world.rank() == 0 ? rows(6) : at::Tensor(),
               is_last(world) ? rows(6) * 9 : at::Tensor(), loss);
      EXPECT_EQ(own.clip_grad_norm(0.1, {.p = p}), norm);
      for (const auto& [name, gradient] : oracle::gradients_of(own.named_parameters()))
        EXPECT_TRUE(at::equal(gradient, expected.at(name))) << name;
    });
  }
}

// P7, P8, P22: a finished step frees its memory, and more steps hold no more.
TEST(RanksPipeline, FreesAllMemoryOfStep) {
  const support::WatchDog watch("memory between steps");
  const nn::Loss loss = nn::mean_squared_error();
  spawn(2, [&](World& world) {
    const auto own = virtual_devices(4)[static_cast<std::size_t>(world.rank())];
    Pipeline pipeline(
        linears(4, 128),
        over(world, {.devices = {own}, .balance = {2, 2}, .micro_batches = 4, .schedule = "1f1b"}));
    std::vector<Bytes> held;
    for (int step = 0; step < 6; ++step) {
      pipeline.step(world.rank() == 0 ? rows(64, 128) : at::Tensor(),
                    is_last(world) ? rows(64, 128) : at::Tensor(), loss);
      world.group().barrier();
      held.push_back(memory_usage(own.torch).current);
    }
    EXPECT_EQ(held[1], held[5]);
    Bytes parameters = 0;
    for (const auto& parameter : pipeline.parameters())
      parameters += 2 * static_cast<Bytes>(parameter.nbytes());
    EXPECT_LE(held[5], parameters + 4096);
  });
}

// Each value of the table crosses once in each direction, with the bytes that the profile gives its
// route.
TEST(RanksPipeline, SendsBytesOfTable) {
  const support::WatchDog watch("bytes sent");
  Net net = support::narrow_unet();
  net.input = net.input.narrow(0, 0, 12);
  net.target = net.target.narrow(0, 0, 12);
  const auto balance = support::even_balance(static_cast<int>(net.make().size()), 3);
  Pipeline alone(net.make(), {.balance = balance, .micro_batches = 4});
  const auto costs = alone.profile({net.input}, net.target, net.loss);
  Bytes expected = 0;
  for (const auto& route : costs.routes) expected += 2 * 4 * route.bytes;
  ASSERT_GT(expected, 0);
  const auto sent = spawn(3, [&](World& world) {
    Pipeline own(net.make(), over(world, {.balance = balance, .micro_batches = 4}));
    for (int step = 0; step < 3; ++step)
      own.step(world.rank() == 0 ? net.input : at::Tensor(),
               is_last(world) ? net.target : at::Tensor(), net.loss);
    return own.bytes_sent();
  });
  EXPECT_EQ(sent[0] + sent[1] + sent[2], 3 * expected);
}

TEST(RanksPipeline, TimelineHasRowOfOwnRank) {
  spawn(2, [&](World& world) {
    Pipeline pipeline(linears(2), over(world, {.balance = {1, 1}, .micro_batches = 2}));
    pipeline.step(world.rank() == 0 ? rows(4) : at::Tensor(),
                  is_last(world) ? rows(4) : at::Tensor(), nn::mean_squared_error());
    const auto timeline = pipeline.timeline();
    EXPECT_FALSE(timeline.events.empty());
    for (const auto& event : timeline.events) EXPECT_EQ(event.rank, world.rank());
  });
}

}  // namespace
}  // namespace trestle
