// Replicated and sharded pipelines have the plain model's gradients.
#include "trestle/parallel/parallelize.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/pipeline/gradient_nets.h"
#include "tests/sharding/layered_net.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/graph.h"
#include "trestle/nn/loss.h"
#include "trestle/parallel/checkpoint_layers.h"
#include "trestle/schedule/generate.h"
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
  int stages = 1;  // virtual devices of a process with its own pipeline, each a rank of its table
  StageUnits stage_units = StageUnits::Layers;
  ShardUnits units = {};
  Reshard reshard = true;
};

std::string units_of(const Case& given) {
  if (given.stage_units == StageUnits::Stage) return "_whole_stage";
  std::string words = given.units.bytes > 0 ? "_joined" : given.units.names.empty() ? "" : "_named";
  if (!given.reshard.to_all()) words += given.reshard.ranks() > 1 ? "_neighbours" : "_kept";
  return words;
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const Case& given = info.param;
  return std::to_string(given.pipeline) + "x" + std::to_string(given.replicate) + "x" +
         std::to_string(given.shard) + "_" + std::string(to_string(given.level)) + "_" +
         (given.schedule == "1f1b" ? "one_f_one_b" : given.schedule) +
         (given.recompute == Recompute::Never ? "" : "_recompute") +
         (given.stages == 1 ? "" : "_" + std::to_string(given.stages) + "stages") + units_of(given);
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
  const int stages = given.pipeline * given.stages * schedule::stages_per_rank(given.schedule, 0);
  const bool whole = stages == 1;
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
    ParallelOptions options{.level = given.level,
                            .stage_units = given.stage_units,
                            .units = given.units,
                            .reshard_after_forward = given.reshard};
    options.options.micro_batches = micro_batches;
    options.options.schedule = given.schedule;
    options.options.recompute = given.recompute;
    options.options.numerics.seed = 5;
    const int layers = static_cast<int>(make_layered_net(dropout, whole).size());
    if (!whole)
      options.options.balance =
          stages == 2 ? std::vector{3, layers - 3} : std::vector{2, 2, 1, layers - 5};
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
    ::testing::Values(
        Case{1, 3, 1, ShardLevel::None}, Case{2, 2, 1, ShardLevel::None},
        Case{2, 2, 1, ShardLevel::None, "1f1b", Recompute::Always},
        Case{1, 1, 2, ShardLevel::OptimizerState}, Case{1, 2, 2, ShardLevel::Gradients},
        Case{2, 1, 2, ShardLevel::Gradients, "1f1b"},
        Case{2, 2, 1, ShardLevel::None, "zb_h1", Recompute::Always},
        Case{2, 1, 2, ShardLevel::Gradients, "zb_h1"},
        Case{2, 1, 2, ShardLevel::Parameters, "zb_h1"},
        Case{2, 1, 2, ShardLevel::Parameters, "zb_h2", Recompute::ExceptLast, 1, StageUnits::Stage},
        Case{1, 1, 3, ShardLevel::Parameters}, Case{2, 1, 2, ShardLevel::Parameters},
        Case{2, 2, 2, ShardLevel::Parameters, "1f1b", Recompute::Always},
        Case{1, 2, 1, ShardLevel::None, "1f1b", Recompute::Never, 2},
        Case{1, 1, 2, ShardLevel::Gradients, "gpipe", Recompute::Always, 2},
        Case{1, 2, 2, ShardLevel::Parameters, "gpipe", Recompute::Never, 2},
        Case{2, 1, 2, ShardLevel::Parameters, "1f1b", Recompute::ExceptLast, 1, StageUnits::Stage},
        // These schedules have two stages on each rank.
        Case{2, 2, 1, ShardLevel::None, "looped_bfs"},
        Case{2, 1, 2, ShardLevel::Gradients, "looped_bfs", Recompute::ExceptLast},
        Case{2, 2, 1, ShardLevel::None, "interleaved_1f1b", Recompute::Always},
        Case{2, 1, 2, ShardLevel::Gradients, "interleaved_1f1b"},
        Case{2, 1, 2, ShardLevel::OptimizerState, "interleaved_zero_bubble"},
        Case{2, 2, 1, ShardLevel::None, "zbv"}, Case{2, 1, 2, ShardLevel::Parameters, "zbv"},
        Case{2, 1, 2, ShardLevel::Parameters, "zbv", Recompute::ExceptLast, 1, StageUnits::Stage},
        Case{1, 1, 2, ShardLevel::Parameters, "zbv", Recompute::Never, 2},
        Case{2,
             1,
             2,
             ShardLevel::Parameters,
             "1f1b",
             Recompute::ExceptLast,
             1,
             StageUnits::Layers,
             {.bytes = 1 << 20}},
        Case{1,
             1,
             2,
             ShardLevel::Parameters,
             "gpipe",
             Recompute::Always,
             2,
             StageUnits::Layers,
             {},
             false},
        Case{1,
             1,
             4,
             ShardLevel::Parameters,
             "1f1b",
             Recompute::ExceptLast,
             1,
             StageUnits::Layers,
             {},
             2}),
    name_of);

TEST(Parallelize, WeightsRaggedBatches) {
  expect_plain_training({1, 3, 1, ShardLevel::None}, mean_square(), 0, {5, 2, 4});
  expect_plain_training({2, 1, 2, ShardLevel::Parameters}, mean_square(), 0, {3, 6});
  expect_plain_training({2, 1, 2, ShardLevel::Parameters, "1f1b"}, mean_square(), 0, {1, 3});
}

// Replicas that have different numbers of micro-batches, or none, gather the same units.
TEST(Parallelize, EvaluatesUnevenSharesAtLevelParameters) {
  spawn(3, [](World& world) {
    const DeviceMesh mesh(world, {{"shard", 3}});
    Parallel parallel(make_layered_net(), mesh,
                      {.level = ShardLevel::Parameters, .options = {.micro_batches = 4}});
    for (int repeat = 0; repeat < 2; ++repeat) {
      const at::Tensor x = rows(world.rank() == 1 ? 1 : 4 + world.rank(), 1);
      EXPECT_TRUE(parallel.evaluate(x).allclose(make_layered_net().forward(x)));
      parallel.step(rows(2, 3), rows(2, 4), mean_square());
      parallel.zero_grad();
    }
  });
}

// A share whose loss has no weight runs no backward, while the other replica gathers in its own.
TEST(Parallelize, GathersLayersWhereAMicroBatchHasNoWeight) {
  nn::Loss loss = mean_square();
  loss.weight = [](const at::Tensor& target) {
    return static_cast<double>(target.gt(0).sum().item<std::int64_t>());
  };
  loss.value = [](const at::Tensor& y, const at::Tensor& target) {
    const at::Tensor counts = target.gt(0).to(y.scalar_type());
    return ((y - target).square() * counts).sum() / counts.sum();
  };
  const at::Tensor x = rows(4, 1), y = rows(4, 2).abs();
  const at::Tensor target = torch::cat({y.narrow(0, 0, 1), -y.narrow(0, 1, 1), y.narrow(0, 2, 2)});
  nn::Layers plain = make_layered_net();
  loss.value(plain.forward(x), target).backward();
  spawn(2, [&](World& world) {
    const DeviceMesh mesh(world, {{"shard", 2}});
    Parallel parallel(make_layered_net(), mesh,
                      {.level = ShardLevel::Parameters, .options = {.micro_batches = 2}});
    const auto result = parallel.step(x.narrow(0, 2 * world.rank(), 2),
                                      target.narrow(0, 2 * world.rank(), 2), loss);
    EXPECT_EQ(result.micro_batches, 4);
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : parallel.named_parameters())
      if (tensor.grad().defined()) tensor.copy_(tensor.grad());
    parallel.sharded(0)->shards_changed();
    const auto gradients = parallel.sharded(0)->state();
    for (const auto& [name, parameter] : plain.named_parameters())
      for (const auto& [own, gradient] : gradients) {
        if (own != name) continue;
        EXPECT_LT((gradient - parameter.grad()).abs().max().item<double>(), 1e-13) << name;
      }
  });
}

// Four equal layers on two ranks: a stage as one unit holds all of them whole, and layers as units
// two at a time.
TEST(Parallelize, LayersAsUnitsHoldFewerWholeParametersThanAStage) {
  constexpr std::int64_t width = 256;
  constexpr Bytes layer = width * width * 4;
  virtual_devices(2);
  const auto peak_of = [&](StageUnits units) {
    return spawn(2, [&](World& world) {
      nn::Layers net(nn::Seed{1});
      for (int i = 0; i < 4; ++i)
        net.add("l" + std::to_string(i), [] {
          return torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false));
        });
      const DeviceMesh mesh(world, {{"shard", 2}});
      const Device device = virtual_devices(2)[static_cast<std::size_t>(world.rank())];
      Parallel parallel(net, mesh,
                        {.level = ShardLevel::Parameters,
                         .stage_units = units,
                         .options = {.devices = {device}, .balance = {4}}});
      const at::Tensor x = torch::ones({2, width});
      for (int step = 0; step < 2; ++step) {
        reset_peak_memory(device.torch);
        parallel.step(x, x, nn::mean_squared_error());
        parallel.zero_grad();
      }
      return memory_usage(device.torch).peak;
    })[0];
  };
  const Bytes of_stage = peak_of(StageUnits::Stage), of_layers = peak_of(StageUnits::Layers);
  EXPECT_GT(of_stage, of_layers + 2 * layer);
}

TEST(Parallelize, WholeBatchLossCoversAllReplicas) {
  expect_plain_training({1, 1, 2, ShardLevel::Parameters, "gpipe", Recompute::Never, 2},
                        of_whole_batch(), 0, {4, 4});
  expect_plain_training({1, 3, 1, ShardLevel::None}, of_whole_batch(), 0, {4, 3, 4});
  expect_plain_training({2, 1, 2, ShardLevel::Gradients}, of_whole_batch(), 0, {4, 4});
}

TEST(CompositionTimeline, NamesRanksOfTheWorld) {
  spawn(4, [](World& world) {
    const DeviceMesh mesh(world, {{"pipeline", 2}, {"shard", 2}});
    ParallelOptions options{.level = ShardLevel::Gradients};
    options.options.balance = {1, 1};
    options.options.micro_batches = 2;
    nn::Layers net(nn::Seed{1});
    for (const char* name : {"a", "b"}) net.add(name, [] { return torch::nn::Linear(3, 3); });
    Parallel parallel(net, mesh, options);
    parallel.step(torch::ones({4, 3}), torch::ones({4, 3}), nn::mean_squared_error());
    const int replica = world.rank() % 2;
    EXPECT_EQ(parallel.pipeline().gather_timeline().world_ranks,
              replica == 0 ? std::vector<int>({0, 2}) : std::vector<int>({1, 3}));
  });
}

// The plain model on the same micro-batches is the oracle: each has its own batch statistics.
TEST(Parallelize, UNetOfVolumesHasThePlainModelsGradients) {
  support::Net net = support::narrow_unet3d();
  net.input = net.input.narrow(0, 0, 4);
  net.target = net.target.narrow(0, 0, 4);
  const int layers = static_cast<int>(net.make().size());
  const std::vector<Device> devices = virtual_devices(4);
  for (const Case& given : {Case{2, 2, 1, ShardLevel::None, "gpipe", Recompute::ExceptLast},
                            Case{1, 1, 2, ShardLevel::OptimizerState, "1f1b", Recompute::Always},
                            Case{1, 2, 1, ShardLevel::Gradients, "gpipe", Recompute::ExceptLast, 2},
                            Case{2, 1, 2, ShardLevel::Parameters, "1f1b", Recompute::Never},
                            Case{2, 2, 1, ShardLevel::None, "zb_h1", Recompute::ExceptLast},
                            Case{2, 1, 2, ShardLevel::OptimizerState, "zb_h1", Recompute::Never},
                            Case{2, 1, 2, ShardLevel::Parameters, "zb_h1", Recompute::Never},
                            Case{1, 1, 4, ShardLevel::Parameters, "gpipe", Recompute::Always}}) {
    SCOPED_TRACE(name_of({given, 0}));
    const nn::Loss& loss = given.schedule == "gpipe" ? net.loss : net.one_f_one_b_loss;
    const auto expected = oracle::looped(net.make(), net.input, net.target, loss, 4, 7, 0);
    const int replicas = given.replicate * given.shard;
    spawn(given.pipeline * replicas, [&](World& world) {
      const DeviceMesh mesh(
          world,
          {{"pipeline", given.pipeline}, {"replicate", given.replicate}, {"shard", given.shard}});
      ParallelOptions options{.level = given.level};
      options.options.micro_batches = 4 / replicas;
      options.options.schedule = given.schedule;
      options.options.recompute = given.recompute;
      options.options.numerics.seed = 7;
      if (given.pipeline * given.stages > 1) options.options.balance = {3, layers - 3};
      if (given.stages > 1) {
        const auto own = devices.begin() + std::ptrdiff_t{2} * world.rank();
        options.options.devices = {own, own + 2};
      }
      Parallel parallel(net.make(), mesh, options);
      const std::int64_t count = 4 / replicas, begin = count * parallel.replica();
      const auto result = parallel.step(net.input.narrow(0, begin, count),
                                        net.target.narrow(0, begin, count), loss);
      EXPECT_NEAR(result.loss, expected.loss, oracle::rounding);
      const at::NoGradGuard no_grad;
      for (const auto& [name, tensor] : parallel.named_parameters()) tensor.copy_(tensor.grad());
      Gradients wanted, own;
      for (int stage = 0; stage < parallel.pipeline().stage_count(); ++stage) {
        if (!parallel.pipeline().has_stage(stage)) continue;
        parallel.sharded(stage)->shards_changed();
        for (const auto& [name, tensor] : parallel.sharded(stage)->state()) {
          if (!expected.gradients.contains(name)) continue;  // a buffer
          own[name] = tensor.cpu();
          wanted[name] = expected.gradients.at(name);
        }
      }
      EXPECT_FALSE(own.empty());
      EXPECT_LT(oracle::difference(wanted, own), oracle::rounding);
    });
  }
}

// A checkpointed layer is gathered for its forward and once more for its backward.
TEST(Parallelize, CheckpointsLayersInsideAStage) {
  const at::Tensor x = rows(4, 1), y = rows(4, 2);
  nn::Layers plain = make_layered_net();
  loss_of(plain.forward(x), y).backward();
  const auto gathered_by = [&](std::vector<std::string> names, int segments = 0) {
    return spawn(2, [&](World& world) {
      ParallelOptions options{.level = ShardLevel::Parameters};
      options.options.micro_batches = 2;
      options.options.balance = {static_cast<int>(make_layered_net().size())};
      if (!names.empty()) options.options.wrap_layers = checkpoint_layers(names);
      options.options.checkpoint_segments = segments;
      Parallel parallel(make_layered_net(), DeviceMesh(world, {{"shard", 2}}), options);
      Bytes gathered = 0;
      for (int step = 0; step < 2; ++step) {
        parallel.zero_grad();
        gathered = -parallel.sharded(0)->report().gathered;
        parallel.step(x.narrow(0, 2 * world.rank(), 2), y.narrow(0, 2 * world.rank(), 2),
                      mean_square());
        gathered += parallel.sharded(0)->report().gathered;
      }
      const at::NoGradGuard no_grad;
      for (const auto& [name, tensor] : parallel.named_parameters()) tensor.copy_(tensor.grad());
      parallel.sharded(0)->shards_changed();
      const auto gradients = parallel.sharded(0)->state();
      const std::map<std::string, at::Tensor> by_name(gradients.begin(), gradients.end());
      for (const auto& [name, parameter] : plain.named_parameters())
        EXPECT_LT((by_name.at(name) - parameter.grad()).abs().max().item<double>(), 1e-13) << name;
      return gathered;
    })[0];
  };
  const Bytes kept = gathered_by({});
  EXPECT_EQ(gathered_by({"layers"}), kept);
  EXPECT_EQ(gathered_by({plain.graph().layers.front().name}), kept);
  EXPECT_EQ(gathered_by({}, 2), kept);
}

// Segments end inside the reach of the skip and between the tied layers; one begins with a layer
// that writes to its input.
TEST(Parallelize, CheckpointedSegmentsHaveThePlainGradients) {
  const std::vector<Device> devices = virtual_devices(2);
  const at::Tensor x = rows(6, 1), y = rows(6, 2);
  const int layers = static_cast<int>(make_layered_net().size());
  for (const int stages : {1, 2})
    for (const int segments : {1, 2, 3, layers, layers + 5})
      for (const Recompute recompute : {Recompute::Never, Recompute::ExceptLast}) {
        SCOPED_TRACE(text(stages, " stages, ", segments, " segments, ", to_string(recompute)));
        nn::Layers net = make_layered_net(0, stages == 1);
        PipelineOptions options{
            .micro_batches = 3, .recompute = recompute, .checkpoint_segments = segments};
        if (stages == 2) options.devices = devices;
        options.balance = stages == 1 ? std::vector{layers} : std::vector{4, layers - 4};
        Pipeline pipeline(net, options);
        pipeline.step(x, y, mean_square());
        nn::Layers same = make_layered_net(0, stages == 1);
        loss_of(same.forward(x), y).backward();
        const auto gradients = gradients_of(pipeline.named_parameters());
        for (const auto& [name, parameter] : same.named_parameters())
          EXPECT_LT((gradients.at(name).cpu() - parameter.grad()).abs().max().item<double>(), 1e-13)
              << name;
      }
  EXPECT_THROW(Pipeline(make_layered_net(), {.checkpoint_segments = -1}), UsageError);
}

struct WideBlockImpl : torch::nn::Module {
  WideBlockImpl(std::int64_t width, std::int64_t inner)
      : in(register_module("in", torch::nn::Linear(width, inner))),
        out(register_module("out", torch::nn::Linear(inner, width))) {}
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(in(x))); }
  torch::nn::Linear in, out;
};
TORCH_MODULE(WideBlock);

TEST(Parallelize, CheckpointedLayersFreeTheirActivations) {
  constexpr std::int64_t width = 64, batch = 256;
  const auto peak_of = [&](std::vector<std::string> names, int segments = 0) {
    nn::Layers net(nn::Seed{1});
    for (int i = 0; i < 4; ++i) net.add("block" + std::to_string(i), WideBlock(width, 8 * width));
    const Device device = virtual_devices(2)[0];
    PipelineOptions options{.devices = {device}, .balance = {4}};
    if (!names.empty()) options.wrap_layers = checkpoint_layers(names);
    options.checkpoint_segments = segments;
    Pipeline pipeline(net, options);
    const at::Tensor x = torch::ones({batch, width});
    for (int step = 0; step < 2; ++step) {
      reset_peak_memory(device.torch);
      pipeline.step(x, x, nn::mean_squared_error());
    }
    return memory_usage(device.torch).peak;
  };
  constexpr Bytes inner = batch * 8 * width * 4;  // of one block
  // One block is recomputed at a time.
  EXPECT_LE(peak_of({"layers"}), peak_of({}) - 3 * inner);
  EXPECT_LE(peak_of({}, 4), peak_of({}) - 3 * inner);
  EXPECT_LE(peak_of({}, 2), peak_of({}) - 2 * inner);  // one segment of two blocks
  EXPECT_THROW(peak_of({"blok1"}), UsageError);
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
