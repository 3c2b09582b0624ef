#include "trestle/sync_batch_norm/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <numeric>

#include "tests/support/device_of_rank.h"
#include "tests/support/message_of.h"
#include "tests/support/run_ranks.h"
#include "trestle/device/device.h"

// SyncBatchNorm over ranks compared with torch's BatchNorm over all samples at once.
namespace trestle::sync_batch_norm {
namespace {

using support::message_of;
using ::testing::HasSubstr;
using testing::run_process_ranks;
using testing::run_ranks;
using Tensors = std::vector<at::Tensor>;
using Options = torch::nn::BatchNormOptions;

struct NormCase {
  std::vector<std::int64_t> counts = {3, 2};    // samples of each rank
  std::vector<std::int64_t> sizes = {4, 3, 2};  // channels and the sizes after them
  Options options = Options(4);
  at::ScalarType dtype = at::kDouble;
  bool is_virtual = false;
  bool channels_last = false;
  bool low_weights = false;
  double tolerance = 1e-10;
};

struct Outcome {
  Tensors outputs, gradients;  // of each step's input
  at::Tensor weight, bias, mean, variance, batches;
};

constexpr int steps = 2;

struct Data {
  Tensors inputs, gradients;  // of each step, over all ranks
  at::Tensor weight, bias;

  explicit Data(const NormCase& c) {
    torch::manual_seed(11);
    std::vector<std::int64_t> sizes = c.sizes;
    sizes.insert(sizes.begin(), std::accumulate(c.counts.begin(), c.counts.end(), std::int64_t{0}));
    for (int i = 0; i < steps; ++i) {
      inputs.push_back((torch::randn(sizes, at::kDouble) * 2 + 3).to(c.dtype));
      gradients.push_back(torch::randn(sizes, at::kDouble).to(c.dtype));
    }
    weight = torch::randn({c.sizes[0]}, at::kDouble);
    bias = torch::randn({c.sizes[0]}, at::kDouble);
  }
};

// Runs `norm` over rows [first, first + count) of each step.
template <class Norm>
Outcome run(Norm& norm, const Data& data, const NormCase& c, std::int64_t first, std::int64_t count,
            at::Device device, at::ScalarType parameters) {
  Outcome out;
  if (norm->weight.defined()) {
    norm->weight.set_data(data.weight.to(parameters));
    norm->bias.set_data(data.bias.to(parameters));
  }
  if (norm->running_mean.defined() && parameters == at::kDouble) {
    norm->running_mean.set_data(norm->running_mean.to(at::kDouble));
    norm->running_var.set_data(norm->running_var.to(at::kDouble));
  }
  norm->to(device);
  for (int i = 0; i < steps; ++i) {
    at::Tensor x = data.inputs[i].narrow(0, first, count).to(device).clone();
    at::Tensor g = data.gradients[i].narrow(0, first, count).to(device).clone();
    if (c.channels_last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
    x.requires_grad_();
    const at::Tensor y = norm->forward(x);
    EXPECT_EQ(y.scalar_type(), x.scalar_type());
    if (c.channels_last) {
      EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
    }
    (y * g).sum().backward();
    out.outputs.push_back(y.detach().cpu());
    out.gradients.push_back(x.grad().cpu());
  }
  const auto kept = [](const at::Tensor& t) { return t.defined() ? t.detach().cpu() : t; };
  if (norm->weight.defined()) {
    out.weight = norm->weight.grad().cpu();
    out.bias = norm->bias.grad().cpu();
  }
  out.mean = kept(norm->running_mean);
  out.variance = kept(norm->running_var);
  out.batches = kept(norm->num_batches_tracked);
  return out;
}

bool near(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  return at::allclose(a.to(at::kDouble), b.to(at::kDouble), tolerance, tolerance);
}

// Compares all ranks' outcomes with one BatchNorm over the whole batch in double precision.
void compare_with_whole_batch(const NormCase& c, const Data& data,
                              const std::vector<Outcome>& ranks) {
  Data exact = data;
  for (Tensors* list : {&exact.inputs, &exact.gradients})
    for (at::Tensor& each : *list) each = each.to(at::kDouble);
  torch::nn::BatchNorm2d norm(c.options);  // accepts every shape as four dimensions
  const std::int64_t all = data.inputs[0].size(0), channels = c.sizes[0];
  for (Tensors* list : {&exact.inputs, &exact.gradients})
    for (at::Tensor& each : *list) each = each.reshape({all, channels, -1, 1});
  NormCase plain = c;
  plain.channels_last = false;
  const Outcome expected = run(norm, exact, plain, 0, all, at::kCPU, at::kDouble);
  for (int i = 0; i < steps; ++i) {
    Tensors outputs, gradients;
    for (const Outcome& rank : ranks) {
      outputs.push_back(rank.outputs[i]);
      gradients.push_back(rank.gradients[i]);
    }
    EXPECT_TRUE(
        near(expected.outputs[i], at::cat(outputs).reshape({all, channels, -1, 1}), c.tolerance));
    EXPECT_TRUE(near(expected.gradients[i], at::cat(gradients).reshape({all, channels, -1, 1}),
                     c.tolerance));
  }
  if (expected.weight.defined()) {
    at::Tensor weight = at::zeros_like(expected.weight), bias = weight.clone();
    for (const Outcome& rank : ranks) {
      weight += rank.weight;
      bias += rank.bias;
    }
    EXPECT_TRUE(near(expected.weight, weight, 10 * c.tolerance));
    EXPECT_TRUE(near(expected.bias, bias, 10 * c.tolerance));
  }
  for (const Outcome& rank : ranks) {
    ASSERT_EQ(rank.mean.defined(), expected.mean.defined());
    if (!rank.mean.defined()) continue;
    EXPECT_TRUE(near(expected.mean, rank.mean, c.tolerance));
    EXPECT_TRUE(near(expected.variance, rank.variance, c.tolerance));
    EXPECT_EQ(rank.batches.item<int>(), steps);
    EXPECT_TRUE(rank.mean.equal(ranks[0].mean)) << "equal bits on all ranks";
  }
}

Outcome run_rank(const NormCase& c, const Data& data, const comm::Group& group, int index) {
  SyncBatchNorm norm(c.options, group);
  const auto first = std::accumulate(c.counts.begin(), c.counts.begin() + index, std::int64_t{0});
  const at::Device device =
      c.is_virtual ? testing::device_of_rank(group.rank()) : at::Device(at::kCPU);
  const at::ScalarType parameters = c.low_weights            ? c.dtype
                                    : c.dtype == at::kDouble ? at::kDouble
                                                             : at::kFloat;
  return run(norm, data, c, first, c.counts[static_cast<std::size_t>(index)], device, parameters);
}

void expect_as_the_whole_batch(const NormCase& c) {
  const Data data(c);
  std::vector<Outcome> ranks(c.counts.size());
  run_ranks(static_cast<int>(c.counts.size()), [&](World& world) {
    ranks[static_cast<std::size_t>(world.rank())] = run_rank(c, data, world.group(), world.rank());
  });
  compare_with_whole_batch(c, data, ranks);
}

TEST(SyncBatchNorm, TwoDimensionalInput) {
  expect_as_the_whole_batch({.counts = {3, 3}, .sizes = {4}});
  expect_as_the_whole_batch({.counts = {3, 3}, .sizes = {4}, .is_virtual = true});
}

TEST(SyncBatchNorm, ThreeToFiveDimensions) {
  expect_as_the_whole_batch({.counts = {2, 2, 2}, .sizes = {4, 5}});
  expect_as_the_whole_batch({.counts = {2, 2, 2, 2}, .sizes = {4, 5, 3}, .is_virtual = true});
  expect_as_the_whole_batch({.counts = {1, 2}, .sizes = {4, 2, 3, 2}});
}

TEST(SyncBatchNorm, DifferentBatchPerRank) {
  expect_as_the_whole_batch({.counts = {5, 1, 3}});
  expect_as_the_whole_batch({.counts = {1, 6, 2, 4}, .sizes = {4}, .is_virtual = true});
}

TEST(SyncBatchNorm, OneSamplePerRank) {
  expect_as_the_whole_batch({.counts = {1, 1}, .sizes = {4}});
  expect_as_the_whole_batch({.counts = {1, 1, 1, 1}, .sizes = {4}, .is_virtual = true});
}

TEST(SyncBatchNorm, EmptyBatchOnSomeRanks) {
  expect_as_the_whole_batch({.counts = {0, 4}});
  expect_as_the_whole_batch({.counts = {3, 0, 0, 2}, .is_virtual = true});
  expect_as_the_whole_batch({.counts = {0, 3}, .dtype = at::kFloat, .tolerance = 1e-4});
}

TEST(SyncBatchNorm, WithoutAffineOrRunningStatisticsOrMomentum) {
  expect_as_the_whole_batch({.options = Options(4).affine(false)});
  expect_as_the_whole_batch({.options = Options(4).track_running_stats(false)});
  expect_as_the_whole_batch({.options = Options(4).momentum(std::nullopt).eps(0.1)});
  expect_as_the_whole_batch(
      {.counts = {2, 0}, .options = Options(4).affine(false), .is_virtual = true});
}

TEST(SyncBatchNorm, ChannelsLast) {
  expect_as_the_whole_batch({.channels_last = true});
  expect_as_the_whole_batch({.counts = {2, 4}, .is_virtual = true, .channels_last = true});
}

TEST(SyncBatchNorm, HalfAndBFloat16AccumulateInFloat32) {
  for (const bool low_weights : {false, true}) {
    expect_as_the_whole_batch(
        {.counts = {5, 2}, .dtype = at::kBFloat16, .low_weights = low_weights, .tolerance = 5e-2});
    expect_as_the_whole_batch({.counts = {5, 2},
                               .dtype = at::kHalf,
                               .is_virtual = true,
                               .low_weights = low_weights,
                               .tolerance = 5e-3});
  }
  expect_as_the_whole_batch(
      {.options = Options(4).affine(false), .dtype = at::kBFloat16, .tolerance = 5e-2});
  // Statistics of bf16 values are exact: a sum in bf16 would lose 3 of 1024.
  run_ranks(2, [](World& world) {
    SyncBatchNorm norm(Options(1).momentum(1.0), world.group());
    norm->forward(torch::full({512, 1}, world.rank() == 0 ? 1.0 : 1.0078125, at::kBFloat16));
    EXPECT_NEAR(norm->running_mean.item<double>(), 1.00390625, 1e-7);
  });
}

TEST(SyncBatchNorm, Float32IsAsExactAsTorch) {
  expect_as_the_whole_batch(
      {.counts = {30, 11}, .sizes = {4, 7, 5}, .dtype = at::kFloat, .tolerance = 2e-5});
}

TEST(SyncBatchNorm, OneRankMatchesTorch) { expect_as_the_whole_batch({.counts = {5}}); }

TEST(SyncBatchNorm, SubGroup) {
  const NormCase c = {.counts = {3, 1}, .is_virtual = false};
  const Data data(c);
  std::vector<Outcome> ranks(2);
  run_ranks(4, [&](World& world) {
    const comm::Group odd = world.make_group({1, 3});
    const comm::Group even = world.make_group({0, 2});
    if (odd.valid())
      ranks[static_cast<std::size_t>(odd.rank())] = run_rank(c, data, odd, odd.rank());
    else
      run_rank({.counts = {2, 2}}, Data({.counts = {2, 2}}), even, even.rank());
  });
  compare_with_whole_batch(c, data, ranks);
}

TEST(SyncBatchNorm, EvalModeDoesNotSync) {
  run_ranks(2, [](World& world) {
    SyncBatchNorm norm(Options(4), world.group());
    norm->forward(torch::randn({3, 4}));
    norm->eval();
    if (world.rank() == 1) return;  // rank 0 continues alone
    torch::nn::BatchNorm1d plain(4);
    plain->running_mean.copy_(norm->running_mean);
    plain->running_var.copy_(norm->running_var);
    plain->eval();
    const at::Tensor x = torch::randn({2, 4});
    EXPECT_TRUE(plain->forward(x).equal(norm->forward(x)));
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), 1);
    SyncBatchNorm by_batch(Options(4).track_running_stats(false), world.group());
    by_batch->eval();
    EXPECT_NEAR(by_batch->forward(x).mean().item<double>(), 0, 1e-5);
    EXPECT_THAT(message_of<std::exception>([&] { by_batch->forward(x.narrow(0, 0, 1)); }),
                HasSubstr("more than one value per channel"));
  });
}

TEST(SyncBatchNorm, FrozenWeightsAndInputsWithoutGradients) {
  run_ranks(2, [](World& world) {
    SyncBatchNorm norm(Options(4), world.group());
    norm->weight.set_requires_grad(false);
    norm->forward(torch::randn({3, 4})).sum().backward();  // no input gradient, so nothing is sent
    EXPECT_FALSE(norm->weight.grad().defined());
    EXPECT_NEAR(norm->bias.grad().sum().item<double>(), 12, 1e-4);
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(norm->forward(torch::randn({3, 4})).requires_grad());
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), 2);
  });
}

// All ranks refuse with the same message.
TEST(SyncBatchNorm, RefusesOnAllRanks) {
  const auto messages = [](int ranks, const std::function<void(World&)>& body) {
    std::vector<std::string> all(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](World& world) {
      all[static_cast<std::size_t>(world.rank())] =
          message_of<std::exception>([&] { body(world); });
    });
    return all;
  };
  EXPECT_THAT(messages(2,
                       [](World& world) {
                         SyncBatchNorm norm(Options(4), world.group());
                         norm->forward(torch::randn({world.rank(), 4}));
                       }),
              ::testing::Each(HasSubstr("the 2 rank(s) have 1 together")));
  EXPECT_THAT(messages(1,
                       [](World& world) {
                         SyncBatchNorm norm(Options(4), world.group());
                         norm->forward(torch::randn({0, 4}));
                       }),
              ::testing::Each(HasSubstr("the 1 rank(s) have 0 together")));
  EXPECT_THAT(messages(2,
                       [](World& world) {
                         SyncBatchNorm norm(Options(4), world.group());
                         norm->forward(torch::randn({3, 4}, at::Device("virtual:1")));
                       }),
              ::testing::Each(HasSubstr("rank 0 and rank 1 are both on virtual:1")));
  EXPECT_THAT(messages(2,
                       [](World& world) {
                         SyncBatchNorm norm(Options(4).eps(world.rank() + 1), world.group());
                         norm->forward(torch::randn({3, 4}));
                       }),
              ::testing::Each(HasSubstr("rank 0 has eps 1, momentum 0.1, rank 1 has eps 2")));
  EXPECT_THAT(messages(1,
                       [](World& world) {
                         SyncBatchNorm norm(Options(4), world.group());
                         norm->forward(torch::randn({3, 5}));
                       }),
              ::testing::Each(HasSubstr("of 4 channels was given [3, 5]")));
  EXPECT_THAT(message_of<std::exception>([] { SyncBatchNorm norm(Options(4), comm::Group()); }),
              HasSubstr("needs a group"));
}

TEST(SyncBatchNorm, RefusesSecondDerivative) {
  run_ranks(2, [](World& world) {
    SyncBatchNorm norm(Options(4), world.group());
    const at::Tensor x = torch::randn({3, 4}).requires_grad_();
    const auto first = torch::autograd::grad({norm->forward(x).pow(2).sum()}, {x}, {}, true, true);
    EXPECT_THAT(message_of<std::exception>([&] { first[0].sum().backward(); }),
                HasSubstr("cannot be differentiated twice"));
  });
}

// On processes: all-gathers each rank's outcome and compares it with the whole batch.
TEST(SyncBatchNormProcesses, UnevenAndEmptyBatches) {
  run_process_ranks(3, [](World& world) {
    for (const auto& counts : {std::vector<std::int64_t>{3, 1, 2}, {2, 0, 4}}) {
      const NormCase c = {.counts = counts};
      const Data data(c);
      const Outcome own = run_rank(c, data, world.group(), world.rank());
      Outcome joined = own;
      for (int i = 0; i < steps; ++i) {
        joined.outputs[i] = at::cat(world.group().all_gather_uneven(own.outputs[i].contiguous()));
        joined.gradients[i] =
            at::cat(world.group().all_gather_uneven(own.gradients[i].contiguous()));
      }
      world.group().all_reduce(joined.weight).wait();
      world.group().all_reduce(joined.bias).wait();
      compare_with_whole_batch(c, data, {joined});
    }
  });
}

}  // namespace
}  // namespace trestle::sync_batch_norm
