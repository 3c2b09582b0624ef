// Which batches update the running statistics of batch norms in a pipeline. T-numbers: torchgpipe's
// tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/pipeline/support.h"
#include "tests/support/oracle.h"
#include "trestle/base/error.h"
#include "trestle/nn/deferred_batch_norm.h"

namespace trestle {
namespace {

using nn::BatchNormStatistics;
using support::distance;

constexpr int channels = 4;

// A batch norm inside a module that the pipeline does not know; other tests use one as a layer.
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : conv(register_module("conv", torch::nn::Conv2d(channels, channels, 3))),
        norm(register_module("norm", torch::nn::BatchNorm2d(channels))) {}
  at::Tensor forward(at::Tensor x) { return norm(conv(x)).relu(); }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
};
TORCH_MODULE(Block);

torch::nn::BatchNorm2d norm(std::optional<double> momentum) {
  return torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(channels).momentum(momentum));
}

at::Tensor normed_images(std::int64_t count, int seed = 1) {
  torch::manual_seed(seed);
  return torch::randn({count, channels, 5, 6}, at::kDouble) * 3 + 2;
}
at::Tensor normed_classes(std::int64_t count) {
  torch::manual_seed(2);
  return torch::randint(3, {count});
}

// The batch norm is first, so that its input does not depend on other layers' normalization.
nn::Layers norm_first(std::optional<double> momentum = 0.1) {
  torch::manual_seed(3);
  nn::Layers net;
  net.add("norm", norm(momentum));
  net.add("mean", [](at::Tensor x) { return x.square().mean({2, 3}); });
  net.add("out", torch::nn::Linear(channels, 3));
  return oracle::in_double(net);
}

nn::Layers two_norms() {
  torch::manual_seed(3);
  nn::Layers net;
  net.add("norm", norm(0.1));
  net.add("block", Block());
  net.add("mean", [](at::Tensor x) { return x.mean({2, 3}); });
  net.add("out", torch::nn::Linear(channels, 3));
  return oracle::in_double(net);
}

PipelineOptions options(std::vector<int> balance, int micro_batches, Recompute recompute,
                        BatchNormStatistics statistics = BatchNormStatistics::WholeBatch) {
  return {.devices = virtual_devices(static_cast<int>(balance.size())),
          .balance = balance,
          .micro_batches = micro_batches,
          .recompute = recompute,
          .numerics = {.batch_norm = statistics}};
}

void expect_near(const NamedTensors& expected, const NamedTensors& actual, double tolerance) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_LE(distance(expected[i].second, actual[i].second), tolerance) << expected[i].first;
}

constexpr Recompute modes[] = {Recompute::Never, Recompute::ExceptLast, Recompute::Always};

TEST(DeferredBatchNorm, T78RunningStatisticsAreOfWholeBatch) {
  for (const std::optional<double> momentum : {std::optional<double>(0.1), {}}) {
    for (const int micro_batches : {1, 4, 5}) {
      for (const Recompute recompute : modes) {  // T111: in every mode
        const nn::Layers whole = norm_first(momentum);
        const nn::Layers net = norm_first(momentum);
        Pipeline pipeline(net, options({1, 2}, micro_batches, recompute));
        for (int step = 0; step < 3; ++step) {
          whole.forward(normed_images(11, step));  // 11 samples as 3, 3, 3 and 2
          pipeline.step(normed_images(11, step), normed_classes(11), nn::cross_entropy());
          expect_near(whole.named_buffers(), net.named_buffers(), 1e-12);
        }
      }
    }
  }
}

TEST(DeferredBatchNorm, T77OutputsAndGradientsEqualBatchNormOfEachMicroBatch) {
  for (const int micro_batches : {1, 4}) {
    for (const Recompute recompute : modes) {  // T112: including the norm's weight and bias
      const at::Tensor x = normed_images(10);
      const auto expected =
          oracle::looped(two_norms(), x, normed_classes(10), nn::cross_entropy(), micro_batches);
      const nn::Layers net = two_norms();
      Pipeline pipeline(net, options({2, 2}, micro_batches, recompute));
      const double loss = pipeline.step(x, normed_classes(10), nn::cross_entropy()).loss;
      // Buffers differ on purpose.
      EXPECT_NEAR(loss, expected.loss, 1e-12);
      EXPECT_LE(
          oracle::difference(expected.gradients, oracle::gradients_of(net.named_parameters())),
          1e-12);
    }
  }
}

TEST(DeferredBatchNorm, T77InputGradientEqualsBatchNormOfEachMicroBatch) {
  const at::Tensor x = normed_images(8).requires_grad_();
  const at::Tensor same = normed_images(8).requires_grad_();
  const nn::Layers plain = norm_first();
  at::Tensor expected;
  for (const auto& piece : same.chunk(4)) {
    const at::Tensor y = plain.forward(piece);
    expected = expected.defined() ? torch::cat({expected, y}) : y;
  }
  Pipeline pipeline(norm_first(), options({1, 2}, 4, Recompute::Always));
  const at::Tensor y = pipeline.forward(x);
  EXPECT_LE(distance(expected, y), 1e-12);
  expected.square().sum().backward();
  y.square().sum().backward();
  EXPECT_LE(distance(same.grad(), x.grad()), 1e-11);
}

TEST(DeferredBatchNorm, T79SkipsNormsWithoutTracking) {
  torch::manual_seed(3);
  nn::Layers net;
  net.add("untracked", torch::nn::BatchNorm2d(
                           torch::nn::BatchNorm2dOptions(channels).track_running_stats(false)));
  torch::nn::BatchNorm2d frozen(channels);
  net.add("frozen", frozen);
  net.add("instance", torch::nn::InstanceNorm2d(
                          torch::nn::InstanceNorm2dOptions(channels).track_running_stats(true)));
  net.add("mean", [](at::Tensor x) { return x.mean({2, 3}); });
  oracle::in_double(net);
  frozen->eval();
  Pipeline pipeline(net, options({2, 2}, 2, Recompute::Always));
  pipeline.step(normed_images(8), at::zeros({8}, at::kLong), nn::cross_entropy());
  EXPECT_EQ(frozen->running_mean.abs().max().item<double>(), 0);
  EXPECT_EQ(frozen->num_batches_tracked.item<std::int64_t>(), 0);
}

TEST(DeferredBatchNorm, T80EvaluationIsPlain) {
  const nn::Layers whole = norm_first();
  const nn::Layers net = norm_first();
  Pipeline pipeline(net, options({1, 2}, 4, Recompute::Never));
  whole.forward(normed_images(8));
  pipeline.step(normed_images(8), normed_classes(8), nn::cross_entropy());
  nn::Layers plain = whole;
  plain.eval();
  EXPECT_LE(distance(plain.forward(normed_images(6, 7)), pipeline.evaluate(normed_images(6, 7))),
            1e-12);
}

// T81, T82: after a trained layer, only the first step's inputs are equal.
TEST(DeferredBatchNorm, T82StatisticsAgreeInFirstStepAndMayDifferAfterwards) {
  const auto make = [] {
    torch::manual_seed(3);
    nn::Layers net;
    net.add("conv", torch::nn::Conv2d(channels, channels, 3));
    net.add("norm", norm(0.1));
    net.add("mean", [](at::Tensor x) { return x.relu().mean({2, 3}); });
    return oracle::in_double(net);
  };
  nn::Layers whole = make();
  const nn::Layers net = make();
  Pipeline pipeline(net, options({1, 2}, 4, Recompute::ExceptLast));
  torch::optim::SGD of_whole(whole.parameters(), 0.1);
  torch::optim::SGD of_net(net.parameters(), 0.1);
  std::vector<double> apart;
  for (int step = 0; step < 5; ++step) {
    whole.zero_grad();
    pipeline.zero_grad();
    const at::Tensor y = whole.forward(normed_images(8, step));
    torch::nn::functional::cross_entropy(y, normed_classes(8)).backward();
    const auto done = pipeline.step(normed_images(8, step), normed_classes(8), nn::cross_entropy(),
                                    {.output = StepOptions::Output::Keep});
    // each micro-batch is normalized by its own statistics
    EXPECT_GT(distance(y, done.output), 1e-3);
    of_whole.step();
    of_net.step();
    apart.push_back(distance(whole.named_buffers()[0].second, net.named_buffers()[0].second));
  }
  EXPECT_LE(apart[0], 1e-12);
  EXPECT_GT(apart[1], 1e-9);
  EXPECT_LE(apart[4], 0.1);
  whole.eval();
  EXPECT_LE(distance(whole.forward(normed_images(6, 9)), pipeline.evaluate(normed_images(6, 9))),
            0.1);
}

TEST(DeferredBatchNorm, T83StatisticsHaveNoGradFn) {
  const nn::Layers net = two_norms();
  Pipeline pipeline(net, options({2, 2}, 4, Recompute::Never));
  pipeline.step(normed_images(8), normed_classes(8), nn::cross_entropy());
  for (const auto& [name, buffer] : net.named_buffers()) {
    EXPECT_FALSE(buffer.requires_grad()) << name;
    EXPECT_FALSE(buffer.grad_fn()) << name;
  }
}

TEST(DeferredBatchNorm, FindsNormsInsideModulesAndInSeveralStages) {
  // The second norm's input is the first norm's output of each micro-batch, merged over all.
  const at::Tensor x = normed_images(9);
  const nn::Layers net = two_norms();
  Pipeline pipeline(net, options({1, 1, 2}, 3, Recompute::Always));
  pipeline.step(x, normed_classes(9), nn::cross_entropy());
  const nn::Layers plain = two_norms();
  auto* const block = dynamic_cast<BlockImpl*>(plain.graph().layers[1].module.make().get());
  ASSERT_NE(block, nullptr);
  std::vector<at::Tensor> seen;
  for (const auto& piece : x.chunk(3))
    seen.push_back(block->conv(plain.graph().layers[0].forward({piece})[0]));
  const at::Tensor all = torch::cat(seen).transpose(0, 1).flatten(1);
  for (const auto& [name, buffer] : net.named_buffers()) {
    if (name == "block.norm.running_mean") {
      EXPECT_LE(distance(buffer, all.mean(1) * 0.1), 1e-12);
    } else if (name == "block.norm.running_var") {
      EXPECT_LE(distance(buffer, all.var(1) * 0.1 + 0.9), 1e-12);
    } else if (name == "block.norm.num_batches_tracked") {
      EXPECT_EQ(buffer.item<std::int64_t>(), 1);
    }
  }
}

TEST(DeferredBatchNorm, FailedStepChangesNeitherStatisticsNorMomentum) {
  torch::nn::BatchNorm2d layer = norm(0.3);
  nn::Layers net;
  net.add("norm", layer);
  net.add("fails", [](at::Tensor x) {
    if (x.size(0) == 2) throw std::runtime_error("on the last piece");
    return x.mean({2, 3});
  });
  oracle::in_double(net);
  Pipeline pipeline(net, options({2}, 3, Recompute::Never));
  EXPECT_THROW(pipeline.step(normed_images(8), at::zeros({8}, at::kLong), nn::cross_entropy()),
               std::exception);
  EXPECT_EQ(layer->options.momentum(), 0.3);
  EXPECT_EQ(layer->num_batches_tracked.item<std::int64_t>(), 0);
  pipeline.step(normed_images(9), at::zeros({9}, at::kLong), nn::cross_entropy());
  EXPECT_EQ(layer->num_batches_tracked.item<std::int64_t>(), 1);
}

TEST(BatchNormStatistics, EachRunUpdatesAgainWhenRecomputed) {
  const auto batches = [](BatchNormStatistics statistics, Recompute recompute) {
    const nn::Layers net = norm_first();
    Pipeline pipeline(net, options({1, 2}, 4, recompute, statistics));
    pipeline.step(normed_images(8), normed_classes(8), nn::cross_entropy());
    return net.named_buffers()[2].second.item<std::int64_t>();
  };
  EXPECT_EQ(batches(BatchNormStatistics::WholeBatch, Recompute::Always), 1);
  EXPECT_EQ(batches(BatchNormStatistics::EachMicroBatch, Recompute::Never), 4);
  EXPECT_EQ(batches(BatchNormStatistics::EachMicroBatch, Recompute::Always), 4);
  EXPECT_EQ(batches(BatchNormStatistics::EachRun, Recompute::Never), 4);
  EXPECT_EQ(batches(BatchNormStatistics::EachRun, Recompute::ExceptLast), 7);
  EXPECT_EQ(batches(BatchNormStatistics::EachRun, Recompute::Always), 8);
}

TEST(BatchNormStatistics, AreParsedByName) {
  for (const auto& name : nn::batch_norm_statistics_names()) nn::parse_batch_norm_statistics(name);
  EXPECT_EQ(nn::parse_batch_norm_statistics("whole_batch"), BatchNormStatistics::WholeBatch);
  EXPECT_THROW(nn::parse_batch_norm_statistics("whole_bach"), UsageError);
}

}  // namespace
}  // namespace trestle
