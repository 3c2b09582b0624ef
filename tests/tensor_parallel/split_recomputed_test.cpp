// Recomputed layers of which each tensor rank keeps a share of the arguments.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "tests/models/tiny_transformers.h"
#include "tests/tensor_parallel/checks.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/seeded.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/token_loss.h"
#include "trestle/parallel/checkpoint_layers.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/recompute/checkpoint.h"
#include "trestle/tensor_parallel/flat_shard.h"

namespace trestle::testing {
namespace {

using tensor_parallel::DenseLayout, tensor_parallel::flat_shard, tensor_parallel::gather_flat;
using tensor_parallel::TensorRanks;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Megatron-LM's test_split_tensor_into_1d_equal_chunks and test_gather_split_1d_tensor, and numbers
// that do not divide.
TEST(FlatShard, IsTheRanksShareOfTheNumbersAndGathersToTheSameBits) {
  const at::Tensor images = seeded(1, [] { return torch::randn({2, 3, 5, 4}); });
  const std::vector<at::Tensor> cases = {torch::arange(16.0).view({4, 4}),
                                         torch::arange(7.0),
                                         torch::arange(3.0),
                                         torch::tensor(5.0),
                                         images,
                                         images.to(at::kBFloat16),
                                         images.contiguous(at::MemoryFormat::ChannelsLast),
                                         images.transpose(1, 3),
                                         images.narrow(3, 1, 2)};
  for (const int size : {1, 2, 4})
    spawn(size, [&](World& world) {
      const TensorRanks ranks(world.group());
      for (const at::Tensor& x : cases) {
        const at::Tensor own = flat_shard(ranks, x);
        EXPECT_EQ(own.sizes(), at::IntArrayRef({ranks.own(x.numel()).size}));
        const at::Tensor again = gather_flat(ranks, own, DenseLayout(x));
        EXPECT_TRUE(at::equal(again, x));
        EXPECT_EQ(again.scalar_type(), x.scalar_type());
        if (x.is_non_overlapping_and_dense()) {
          EXPECT_EQ(again.strides(), x.strides());
        }
      }
      EXPECT_TRUE(at::equal(flat_shard(ranks, cases[0]),
                            torch::arange(16.0).narrow(0, ranks.own(16).begin, 16 / size)));
    });
}

// Megatron-LM's test_checkpoint: 8 of 16 elements stay on each of 2 ranks, and output and gradient
// are exact.
TEST(SplitRecomputed, KeepsEightOfSixteenElementsOnEachOfTwoRanks) {
  spawn(2, [](World& world) {
    const TensorRanks ranks(world.group());
    const at::Tensor x = leaf(torch::arange(16.0).view({4, 4})), plain = leaf(x);
    std::vector<std::int64_t> kept;
    nn::CheckpointOptions options;
    options.keep_input = [&](const at::Tensor& input) -> nn::KeptInput {
      const at::Tensor own = flat_shard(ranks, input);
      kept.push_back(own.numel());
      return {.kept = own, .restore = [ranks, layout = DenseLayout(input)](const at::Tensor& own) {
                return gather_flat(ranks, own, layout);
              }};
    };
    const auto function = [](const at::Tensor& a) { return (a.sin() * a).exp(); };
    const at::Tensor y = nn::checkpoint(options, function, x);
    EXPECT_EQ(kept, std::vector<std::int64_t>{8});
    const at::Tensor expected = function(plain);
    EXPECT_TRUE(at::equal(y, expected));
    y.sum().backward();
    expected.sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), plain.grad()));
  });
}

// Inside of another recomputed function the share itself is recomputed.
TEST(SplitRecomputed, NestsInRecomputedFunctions) {
  spawn(2, [](World& world) {
    const TensorRanks ranks(world.group());
    nn::CheckpointOptions options;
    options.keep_input = [&](const at::Tensor& input) -> nn::KeptInput {
      return {.kept = flat_shard(ranks, input),
              .restore = [ranks, layout = DenseLayout(input)](const at::Tensor& own) {
                return gather_flat(ranks, own, layout);
              }};
    };
    const auto inner = [](const at::Tensor& a) { return (a.sin() * a).exp(); };
    const auto outer = [&](const at::Tensor& a) {
      return nn::checkpoint(options, inner, a.square()).tanh();
    };
    const at::Tensor x = leaf(torch::arange(5.0) / 5), plain = leaf(x);
    nn::checkpoint(outer, x).sum().backward();
    inner(plain.square()).tanh().sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), plain.grad()));
  });
}

models::TransformerConfig config_of(bool llama) {
  models::TransformerConfig config = llama ? models::tiny_llama() : models::tiny_gpt2();
  config.dropout = {.embedding = 0.1, .residual = 0.1, .attention = 0.1};
  return config;
}

at::Tensor ids_of(std::int64_t tokens) {
  return (torch::arange(3 * tokens) * 37 % 40).view({3, tokens});
}

std::map<std::string, at::Tensor> gradients_of(const TensorRanks& ranks, bool llama,
                                               at::ScalarType type,
                                               const CheckpointLayersOptions& options) {
  const nn::Layers net = models::transformer(
      config_of(llama),
      {.type = type, .attention = models::AttentionCore::Written, .tensor = {.ranks = ranks}});
  nn::Graph graph = net.graph();
  checkpoint_layers({"blocks"}, options)(graph);
  for (int step = 0; step < 2; ++step)
    nn::run(graph, {ids_of(7)}, {.seed = 4, .step = step}).at(0).square().sum().backward();
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, tensor] : net.named_parameters()) all[name] = tensor.grad();
  return all;
}

// 3 rows of 7 tokens, with dropout: the numbers of a block's input do not divide.
TEST(SplitRecomputed, GradientsAreThoseOfWholeArgumentsToTheBit) {
  for (const bool llama : {false, true})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const int size : {2, 4})
        spawn(size, [&](World& world) {
          SCOPED_TRACE(text("llama ", llama, ", ", c10::toString(type), ", ", size, " ranks"));
          const TensorRanks ranks(world.group());
          const auto whole = gradients_of(ranks, llama, type, {});
          const Traffic plain = ranks.traffic();
          const auto split = gradients_of(ranks, llama, type, {.split_arguments = ranks});
          const Traffic all = ranks.traffic() - plain;
          EXPECT_EQ(all.all_gather.calls, plain.all_gather.calls + 2 * 2);  // steps x blocks
          ASSERT_EQ(whole.size(), split.size());
          for (const auto& [name, gradient] : whole)
            EXPECT_TRUE(at::equal(gradient, split.at(name))) << name;
        });
}

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
};

Trained train(const DeviceMesh& mesh, const TensorRanks& ranks,
              const CheckpointLayersOptions& recomputed) {
  ParallelOptions options{.tensor_ranks = ranks};
  options.options = {.balance = {2, 3}, .micro_batches = 3};
  options.options.schedule = "1f1b";
  options.options.wrap_layers = checkpoint_layers({"blocks"}, recomputed);
  Parallel parallel(
      models::transformer(config_of(false), {.attention = models::AttentionCore::Written,
                                             .tensor = {.ranks = ranks}}),
      mesh, options);
  Trained trained;
  for (int step = 0; step < 2; ++step) {
    parallel.zero_grad();
    const at::Tensor ids = ids_of(8);
    trained.losses.push_back(
        parallel.step(ids.narrow(1, 0, 7), ids.narrow(1, 1, 7), nn::token_cross_entropy()).loss);
    parallel.clip_grad_norm(0.5);
    const at::NoGradGuard no_grad;
    for (const at::Tensor& one : parallel.parameters())
      if (one.grad().defined()) one.sub_(one.grad(), 0.5);
  }
  for (const at::Tensor& one : parallel.parameters())
    trained.weights.push_back(one.detach().clone());
  return trained;
}

TEST(SplitRecomputed, PipelinesOfTensorRanksTrainToTheSameBits) {
  spawn(4, [](World& world) {
    const DeviceMesh mesh(world, {{"pipeline", 2}, {"tensor", 2}});
    const TensorRanks ranks(mesh);
    const Trained whole = train(mesh, ranks, {}),
                  split = train(mesh, ranks, {.split_arguments = ranks});
    EXPECT_EQ(whole.losses, split.losses);
    for (std::size_t i = 0; i < whole.weights.size(); ++i)
      EXPECT_TRUE(at::equal(whole.weights[i], split.weights[i])) << i;
  });
}

TEST(SplitRecomputed, RefusesArgumentsThatDifferBetweenTheRanks) {
  spawn(2, [](World& world) {
    const TensorRanks ranks(world.group());
    const nn::Layers net =
        models::transformer(models::tiny_gpt2(), {.tensor = {.ranks = ranks, .sequence = true}});
    nn::Graph graph = net.graph();
    checkpoint_layers({"blocks"}, {.split_arguments = ranks})(graph);
    EXPECT_THAT(refusal_of([&] { nn::run(graph, {ids_of(8)}); }),
                AllOf(HasSubstr("the recomputed layer 'blocks.0' cannot keep shards of its "
                                "arguments, which differ: [3, 4, "),
                      HasSubstr(" on tensor rank 1")));
    // Without a backward nothing is kept.
    const at::NoGradGuard no_grad;
    nn::run(graph, {ids_of(8)});
  });
}

}  // namespace
}  // namespace trestle::testing
