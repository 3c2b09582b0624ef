// Replicated and sharded pipelines have the plain model's gradients.
#include "trestle/parallel/parallelize.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/sharding/layered_net.h"
#include "trestle/base/error.h"
#include "trestle/nn/graph.h"
#include "trestle/nn/loss.h"
#include "trestle/sharding/sharded.h"
#include "trestle/sharding/sharded_parameters.h"

namespace trestle::testing {
namespace {

using ::testing::HasSubstr;

struct Case {
  int pipeline, replicate, shard;
  ShardLevel level;
  std::string schedule = "gpipe";
  Recompute recompute = Recompute::Never;
  int stages = 1;  // of a process with its own pipeline, each on a virtual device
};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const Case& given = info.param;
  return std::to_string(given.pipeline) + "x" + std::to_string(given.replicate) + "x" +
         std::to_string(given.shard) + "_" + std::string(to_string(given.level)) + "_" +
         (given.schedule == "gpipe" ? "gpipe" : "one_f_one_b") +
         (given.recompute == Recompute::Never ? "" : "_recompute") +
         (given.stages == 1 ? "" : "_" + std::to_string(given.stages) + "stages");
}

nn::Loss mean_square() {
  nn::Loss loss;
  loss.name = "mean_square";
  loss.value = [](const at::Tensor& y, const at::Tensor& target) { return loss_of(y, target); };
  loss.weight = [](const at::Tensor& target) { return static_cast<double>(target.numel()); };
  return loss;
}

// Not a mean over samples.
nn::Loss of_whole_batch() {
  nn::Loss loss;
  loss.name = "whole";
  loss.kind = nn::Loss::Kind::WholeBatch;
  loss.value = [](const at::Tensor& y, const at::Tensor& target) {
    return (y * target).sum() / (y.square().sum() + target.square().sum() + 1);
  };
  return loss;
}

class Composition : public ::testing::TestWithParam<Case> {};

// Two steps of plain SGD by hand: the second shows state left over from the first.
void expect_plain_training(const Case& given, const nn::Loss& loss, double dropout,
                           const std::vector<std::int64_t>& rows_of_replica) {
  constexpr int micro_batches = 2;
  std::int64_t all = 0;
  for (const auto count : rows_of_replica) all += count;
  const bool whole = given.pipeline * given.stages == 1;
  const int ranks = given.pipeline * given.replicate * given.shard;
  std::vector<Device> devices;  // before the first backward
  if (given.stages > 1) devices = virtual_devices(given.stages * ranks);
  nn::Layers plain = make_layered_net(dropout, whole);
  std::vector<double> losses;
  for (int step = 0; step < 2; ++step) {
    plain.zero_grad();
    const at::Tensor x = rows(all, 10 + step), y = rows(all, 20 + step);
    const nn::Graph graph = plain.graph();
    std::vector<at::Tensor> outputs;
    std::int64_t begin = 0, number = 0;
    for (const auto count : rows_of_replica) {
      for (const auto& piece : x.narrow(0, begin, count).tensor_split(micro_batches))
        outputs.push_back(
            nn::run(graph, {piece}, {.seed = 5, .step = step, .micro_batch = number++}).at(0));
      begin += count;
    }
    const at::Tensor value = loss.value(torch::cat(outputs), y);
    value.backward();
    losses.push_back(value.item<double>());
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : plain.named_parameters()) tensor.sub_(tensor.grad(), 0.1);
  }
  const Gradients expected = [&] {
    Gradients weights;
    for (const auto& [name, tensor] : plain.named_parameters()) weights[name] = tensor.detach();
    return weights;
  }();
  spawn(ranks, [&](World& world) {
    const DeviceMesh mesh(
        world,
        {{"pipeline", given.pipeline}, {"replicate", given.replicate}, {"shard", given.shard}});
    ParallelOptions options{.level = given.level};
    options.options.micro_batches = micro_batches;
    options.options.schedule = given.schedule;
    options.options.recompute = given.recompute;
    options.options.numerics.seed = 5;
    const int layers = static_cast<int>(make_layered_net(dropout, whole).size());
    if (!whole) options.options.balance = {3, layers - 3};
    if (given.stages > 1) {
      const auto own = devices.begin() + std::ptrdiff_t{given.stages} * world.rank();
      options.options.devices = {own, own + given.stages};
    }
    Parallel parallel(make_layered_net(dropout, whole), mesh, options);
    for (int step = 0; step < 2; ++step) {
      parallel.zero_grad();
      std::int64_t begin = 0;
      for (int replica = 0; replica < parallel.replica(); ++replica)
        begin += rows_of_replica[replica];
      const std::int64_t count = rows_of_replica[parallel.replica()];
      const auto result = parallel.step(rows(all, 10 + step).narrow(0, begin, count),
                                        rows(all, 20 + step).narrow(0, begin, count), loss);
      EXPECT_NEAR(result.loss, losses[step], 1e-13);
      const at::NoGradGuard no_grad;
      for (const auto& [name, tensor] : parallel.named_parameters())
        tensor.sub_(tensor.grad(), 0.1);
      for (int stage = 0; stage < parallel.pipeline().stage_count(); ++stage)
        if (parallel.pipeline().has_stage(stage)) parallel.sharded(stage)->shards_changed();
    }
    for (int stage = 0; stage < parallel.pipeline().stage_count(); ++stage) {
      if (!parallel.pipeline().has_stage(stage)) continue;
      for (const auto& [name, tensor] : parallel.sharded(stage)->state())
        EXPECT_LT((tensor - expected.at(name)).abs().max().item<double>(), 1e-13) << name;
    }
  });
}

TEST_P(Composition, TrainsAsPlainModel) {
  const Case given = GetParam();
  const std::vector<std::int64_t> rows_of_replica(given.replicate * given.shard, 4);
  expect_plain_training(given, mean_square(), 0.5, rows_of_replica);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, Composition,
    ::testing::Values(Case{1, 3, 1, ShardLevel::None}, Case{2, 2, 1, ShardLevel::None},
                      Case{2, 2, 1, ShardLevel::None, "1f1b", Recompute::Always},
                      Case{1, 1, 2, ShardLevel::OptimizerState},
                      Case{1, 2, 2, ShardLevel::Gradients},
                      Case{2, 1, 2, ShardLevel::Gradients, "1f1b"},
                      Case{1, 1, 3, ShardLevel::Parameters}, Case{2, 1, 2, ShardLevel::Parameters},
                      Case{2, 2, 2, ShardLevel::Parameters, "1f1b", Recompute::Always},
                      Case{1, 2, 1, ShardLevel::None, "1f1b", Recompute::Never, 2},
                      Case{1, 1, 2, ShardLevel::Gradients, "gpipe", Recompute::Always, 2},
                      Case{1, 2, 2, ShardLevel::Parameters, "gpipe", Recompute::Never, 2}),
    name_of);

TEST(Parallelize, WeightsRaggedBatches) {
  expect_plain_training({1, 3, 1, ShardLevel::None}, mean_square(), 0, {5, 2, 4});
  expect_plain_training({2, 1, 2, ShardLevel::Parameters}, mean_square(), 0, {3, 6});
}

TEST(Parallelize, WholeBatchLossCoversAllReplicas) {
  expect_plain_training({1, 1, 2, ShardLevel::Parameters, "gpipe", Recompute::Never, 2},
                        of_whole_batch(), 0, {4, 4});
  expect_plain_training({1, 3, 1, ShardLevel::None}, of_whole_batch(), 0, {4, 3, 4});
  expect_plain_training({2, 1, 2, ShardLevel::Gradients}, of_whole_batch(), 0, {4, 4});
}

TEST(Parallelize, RefusesForwardWithGradients) {
  spawn(2, [](World& world) {
    const DeviceMesh mesh(world, {{"replicate", 2}});
    Parallel parallel(make_layered_net(), mesh);
    EXPECT_THROW(parallel.pipeline().forward(rows(2, 1)), UsageError);
    EXPECT_TRUE(parallel.evaluate(rows(2, 1)).allclose(make_layered_net().forward(rows(2, 1))));
    const DeviceMesh other(world, {{"data", 2}});
    EXPECT_THROW(Parallel(make_layered_net(), other), UsageError);
  });
}

}  // namespace
}  // namespace trestle::testing
