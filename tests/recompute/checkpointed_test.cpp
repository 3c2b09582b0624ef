#include "trestle/recompute/checkpointed.h"

#include <atomic>
#include <thread>

#include "tests/recompute/same_as_plain.h"
#include "trestle/base/error.h"
#include "trestle/device/device.h"
#include "trestle/pipeline/pipeline.h"

namespace trestle {
namespace {

using nn::Checkpointed;

// Has batch norm, dropout, a skip, a layer that writes to its input, and one that only views it.
nn::Layers net_with_everything() {
  nn::Layers net(nn::Seed{4});
  net.add("conv", [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)); })
      .keep_output("s");
  net.add("norm", [] { return torch::nn::BatchNorm2d(4); });
  net.add("relu", torch::nn::ReLU(torch::nn::ReLUOptions(true)));
  net.add("drop", torch::nn::Dropout(0.3));
  net.add("join", [](Tensor x, Tensor skip) { return at::cat({x, skip}, 1); }).take("s");
  net.add("flat", [](Tensor x) { return x.flatten(1); });
  net.add("write", [](Tensor x) { return x.mul_(0.5); });
  net.add("tanh", torch::nn::Tanh());
  net.add("out", [] { return torch::nn::Linear(8 * 36, 3); });
  return net;
}

// Output, gradients and buffers after two steps.
Tensors steps(nn::Layers net, const std::function<Tensor(Tensor)>& forward) {
  torch::manual_seed(21);
  Tensors result;
  const Tensor x = at::randn({5, 2, 6, 6}).requires_grad_();
  for (int i = 0; i < 2; ++i) {
    const Tensor y = forward(x);
    y.square().sum().backward();
    result.push_back(y.detach());
  }
  result.push_back(x.grad());
  for (const auto& [name, parameter] : net.named_parameters()) result.push_back(parameter.grad());
  for (const auto& [name, buffer] : net.named_buffers()) result.push_back(buffer);
  result.push_back(at::rand({3}));
  return result;
}

Tensors plain_steps() {
  const auto net = net_with_everything();
  return steps(net, [&](Tensor x) { return net.forward(x); });
}

TEST(Checkpointed, AnyNumberOfSegmentsGivesThePlainModelsNumbers) {
  const auto expected = plain_steps();
  for (int segments = 1; segments <= 9; ++segments) {
    const auto net = net_with_everything();
    const auto model = Checkpointed::in_segments(segments, net);
    EXPECT_EQ(model.recomputed().size(), static_cast<std::size_t>(segments - 1));
    expect_equal(expected, steps(net, [&](Tensor x) { return model.forward(x); }));
    const auto other = net_with_everything();
    expect_equal(expected, steps(other, [&](Tensor x) {
                   return nn::checkpoint_sequential(segments, other, x);
                 }));
  }
}

TEST(Checkpointed, EveryKthLayerAndUnitsByName) {
  const auto expected = plain_steps();
  for (int k = 1; k <= 4; ++k) {
    const auto net = net_with_everything();
    const auto model = Checkpointed::every(k, net);
    expect_equal(expected, steps(net, [&](Tensor x) { return model.forward(x); }));
  }
  const auto net = net_with_everything();
  using Names = std::vector<std::vector<std::string>>;
  EXPECT_EQ(Checkpointed::every(4, net).recomputed(), (Names{{"drop"}, {"tanh"}}));
  const auto model = Checkpointed::units({"out", "norm"}, net);
  EXPECT_EQ(model.recomputed(), (Names{{"norm"}, {"out"}}));
  expect_equal(expected, steps(net, [&](Tensor x) { return model.forward(x); }));

  nn::Layers outer;
  outer.add("a", net_with_everything()).pass_on({0});
  outer.add("b", torch::nn::Tanh());
  EXPECT_EQ(Checkpointed::units({"a"}, outer).recomputed().at(0).size(), 9);
  EXPECT_THAT(error_of<UsageError>([&] {
                Checkpointed::units({"a", "a.relu"}, outer);
              }),
              HasSubstr("are part of another listed unit"));
  EXPECT_THAT(error_of<UsageError>([&] { Checkpointed::units({"a.rellu"}, outer); }),
              HasSubstr("did you mean 'a.relu'?"));
  EXPECT_THAT(error_of<UsageError>([&] { Checkpointed::in_segments(11, outer); }),
              HasSubstr("cannot cut 10 layers into 11 segments"));
  EXPECT_THROW(Checkpointed::in_segments(0, outer), UsageError);
  EXPECT_THROW(Checkpointed::every(0, outer), UsageError);
}

TEST(Checkpointed, ASequentialAndAListOfModules) {
  torch::manual_seed(2);
  std::vector<torch::nn::Linear> list;
  torch::nn::Sequential sequential;
  for (int i = 0; i < 5; ++i) {
    list.emplace_back(6, 6);
    sequential->push_back(list.back());
  }
  const Tensor x = leaf({3, 6});
  const auto plain =
      outcome([&](Tensor a) { return sequential->forward(a).sum(); }, x, sequential->parameters());
  expect_equal(
      plain, outcome([&](Tensor a) { return nn::checkpoint_sequential(2, sequential, a).sum(); }, x,
                     sequential->parameters()));
  const auto model = Checkpointed::every(2, nn::in_a_row(list));
  expect_equal(plain, outcome([&](Tensor a) { return model.forward(a).sum(); }, x,
                              sequential->parameters()));
}

TEST(Checkpointed, KeyedRandomNumbersAreTheSame) {
  const auto net = net_with_everything();
  const auto model = Checkpointed::in_segments(4, net);
  const Tensor x = at::randn({5, 2, 6, 6});
  const nn::RunKey key{.seed = 3, .step = 2, .micro_batch = 1};
  const auto gradients = [&](const nn::Values& outputs) {
    Tensors result = {outputs.at(0)};
    for (const Tensor& g : torch::autograd::grad({outputs.at(0).square().sum()}, net.parameters()))
      result.push_back(g);
    return result;
  };
  expect_equal(gradients(nn::run(net.graph(), {x}, key)), gradients(model.forward({x}, key)));
}

TEST(Checkpointed, TwoThreadsAtOnce) {
  nn::Layers net(nn::Seed{4});
  for (int i = 0; i < 8; ++i)
    net.add("l" + std::to_string(i), [] { return torch::nn::Linear(16, 16); });
  const auto model = Checkpointed::in_segments(4, net);
  const Tensor x = at::randn({4, 16});
  const auto expected = torch::autograd::grad({net.forward(x).square().sum()}, net.parameters());
  std::atomic<int> wrong = 0;
  const auto work = [&] {
    at::set_num_threads(1);
    for (int i = 0; i < 20; ++i) {
      const auto got = torch::autograd::grad({model.forward(x).square().sum()}, net.parameters());
      for (std::size_t k = 0; k < got.size(); ++k) wrong += at::equal(got[k], expected[k]) ? 0 : 1;
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(wrong, 0);
}

nn::Layers deep(int layers) {
  nn::Layers net(nn::Seed{4});
  for (int i = 0; i < layers; ++i)
    net.add("l" + std::to_string(i), [](Tensor x) { return x.sin(); });
  return net;
}

// Chen et al.: n layers in k segments need k - 1 boundaries and one segment's intermediate results.
TEST(Checkpointed, MemoryGrowsWithTheSquareRoot) {
  const at::Device device("virtual:2");
  const auto net = deep(36);
  const Tensor x = at::ones({64, 256}, device).requires_grad_();
  std::vector<Bytes> peaks = {0};
  for (int segments = 1; segments <= 36; ++segments) {
    const auto model = Checkpointed::in_segments(segments, net);
    model.forward(x).sum().backward();  // learns which segments write to their inputs
    x.mutable_grad() = Tensor();
    reset_peak_memory(device);
    const Bytes before = memory_usage(device).current;
    model.forward(x).sum().backward();
    peaks.push_back(memory_usage(device).peak - before);
    x.mutable_grad() = Tensor();
  }
  const auto least = std::min_element(peaks.begin() + 1, peaks.end()) - peaks.begin();
  EXPECT_GE(least, 5);
  EXPECT_LE(least, 8);
  EXPECT_GE(peaks[1], 36 * 65536);
  EXPECT_LE(peaks[6], 16 * 65536);
  EXPECT_GT(peaks[36], peaks[6] * 2);
}

// A stage's backward, and so the recomputation, runs in its device's backward thread.
TEST(Checkpointed, InsideOfAPipelineStage) {
  const auto build = [](bool with) {
    nn::Layers net(nn::Seed{9});
    struct BlockImpl : torch::nn::Module {
      explicit BlockImpl(bool with_checkpoint) : with(with_checkpoint) {
        body = register_module(
            "body", torch::nn::Sequential(torch::nn::Linear(8, 8), torch::nn::Tanh(),
                                          torch::nn::BatchNorm1d(8), torch::nn::Dropout(0.4)));
      }
      Tensor forward(Tensor x) { return with ? checkpoint(body, x) : body->forward(x); }
      bool with;
      torch::nn::Sequential body = nullptr;
    };
    for (int i = 0; i < 4; ++i)
      net.add("b" + std::to_string(i), [with] { return std::make_shared<BlockImpl>(with); });
    return net;
  };
  for (const Recompute mode : {Recompute::Never, Recompute::Always}) {
    Tensors results[2];
    for (const bool with : {false, true}) {
      auto net = build(with);
      Pipeline pipeline(net, {.devices = virtual_devices(2),
                              .balance = {2, 2},
                              .micro_batches = 2,
                              .recompute = mode});
      torch::manual_seed(1);
      const Tensor x = at::randn({8, 8}), y = at::randn({8, 8});
      const auto result = pipeline.step(x, y, nn::mean_squared_error());
      auto& all = results[with ? 1 : 0];
      all.push_back(at::tensor(result.loss));
      for (const auto& [name, parameter] : net.named_parameters())
        all.push_back(parameter.grad().cpu());
      for (const auto& [name, buffer] : net.named_buffers()) all.push_back(buffer.cpu());
    }
    expect_equal(results[0], results[1]);
  }
}

}  // namespace
}  // namespace trestle
