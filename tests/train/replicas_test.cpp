// A training over replicas has the numbers of one process, except for the order in which gradients
// are added.
#include <gmock/gmock.h>

#include <thread>

#include "tests/support/message_of.h"
#include "tests/train/training.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/sharding/sharded_parameters.h"
#include "trestle/train/levels/levels.h"
#include "trestle/train/mesh_options.h"
#include "trestle/train/setup.h"
#include "trestle/train/sharding_plan.h"

namespace trestle::train {
namespace {

using support::message_of;
using ::testing::HasSubstr;

// make_mine() without batch statistics, which each replica would keep for itself.
nn::Layers make_without_norm(const models::ModelOptions& options) {
  nn::Layers net(nn::Seed{options.seed});
  net.add("in",
          [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).stride(2).padding(1)); })
      .keep_output("skip");
  net.add("drop", torch::nn::Dropout(0.3));
  net.add("add", [](at::Tensor x, at::Tensor skip) { return (x + skip).relu().flatten(1); })
      .take("skip");
  net.add("out", [] { return torch::nn::Linear(4 * 14 * 14, 10); });
  return net;
}

class ReplicasTraining : public Training {
 protected:
  static recipe::Recipe one_process() {
    recipe::Recipe one = on_cpu({});
    one.model.name = "without_norm";
    one.pipeline.micro_batches = 4;
    one.optimizer.clip_grad_norm = 1;
    return one;
  }
  static TrainHooks own_hooks(std::int64_t stop_after_steps = 0) {
    TrainHooks own = hooks(stop_after_steps);
    own.models = {{"without_norm", make_without_norm}, {"mine", make_mine}};
    return own;
  }
  static void expect_close_run(const TrainResult& expected, const TrainResult& actual) {
    expect_close(expected.run_folder / "last", actual.run_folder / "last");
    EXPECT_EQ(expected.best_metric, actual.best_metric);
    const auto x = lines(expected.run_folder, "loss"), y = lines(actual.run_folder, "loss");
    ASSERT_EQ(x.size(), y.size());
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(x[i]["loss"].get<double>(), y[i]["loss"].get<double>(), 1e-5);
  }
};

TEST_F(ReplicasTraining, HasNumbersOfOneProcess) {
  const TrainResult one = train(one_process(), own_hooks());
  recipe::Recipe two = one_process();
  two.pipeline.micro_batches = 2;
  two.mesh.replicate = 2;
  expect_close_run(one, on_ranks(2, two, own_hooks()));
  two.mesh.pipeline = 2;
  two.pipeline.balance = {2, 2};
  expect_close_run(one, on_ranks(4, two, own_hooks()));
}

TEST_F(ReplicasTraining, AcceptsAccumulationAndRaggedLastBatch) {
  recipe::Recipe one = one_process();
  one.train.accumulate = 2;
  one.train.drop_last = false;
  one.train.batch = 9;
  one.pipeline.micro_batches = 1;
  one.model.name = "without_norm";
  const TrainResult expected = [&] {
    recipe::Recipe plain = one;
    plain.pipeline.micro_batches = 3;
    return train(plain, own_hooks());
  }();
  one.mesh.replicate = 3;
  const TrainResult actual = on_ranks(3, one, own_hooks());
  // Replicas' micro-batches get other dropout masks than one process's, so only the number of steps
  // is equal.
  EXPECT_EQ(lines(expected.run_folder, "loss").size(), lines(actual.run_folder, "loss").size());
  for (const auto& [name, tensor] : tensors(actual.run_folder / "last"))
    EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
}

// Dice and similar losses cover the whole batch in validation too, even if a replica has no sample
// of it.
TEST_F(ReplicasTraining, WholeBatchLossCoversAllReplicasInValidation) {
  recipe::Recipe one = one_process();
  one.train.epochs = 1;
  one.train.loss = "spread";
  one.train.batch = 18;  // of 20 for validation
  one.pipeline.micro_batches = 6;
  TrainHooks own = own_hooks();
  own.user_parts.losses["spread"] = [] {
    return nn::whole_batch("spread", [](const at::Tensor& output, const at::Tensor& target) {
      const at::Tensor right = output.gather(1, target.unsqueeze(1));
      return 1 / (right.square().sum() + 1) + right.mean().square();
    });
  };
  const auto validated = [&](const TrainResult& run) {
    std::vector<double> all;
    for (const auto& line : lines(run.run_folder, "validation_loss"))
      all.push_back(line["validation_loss"].get<double>());
    return all;
  };
  const auto expected = validated(train(one, own));
  ASSERT_EQ(expected.size(), 1u);
  for (const std::int64_t replicas : {2, 3}) {
    recipe::Recipe more = one;
    more.mesh.replicate = replicas;
    more.mesh.pipeline = replicas == 2 ? 2 : 1;
    if (replicas == 2) more.pipeline.balance = {2, 2};
    more.pipeline.micro_batches = 6 / replicas;
    const auto actual =
        validated(on_ranks(static_cast<int>(replicas * more.mesh.pipeline), more, own));
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-5);
  }
}

// Each replica measures, and no two measure the same.
TEST(Replicas, UseBalanceMeasuredByFirstReplica) {
  const auto balances = spawn(2, [](World& world) {
    static constexpr auto long_time = std::chrono::milliseconds(20);
    const int slow = world.rank() == 0 ? 0 : 3;
    nn::Layers net(nn::Seed{1});
    for (int i = 0; i < 4; ++i)
      net.add(text("layer", i), [i, slow](at::Tensor x) {
        if (i == slow) std::this_thread::sleep_for(long_time);
        return x * 2;
      });
    PipelineOptions options{.devices = {cpu_device(), cpu_device()}};
    options.replicas.group = world.group();
    options.plan.sample = {torch::ones({2, 3})};
    return Pipeline(net, options).balance();
  });
  EXPECT_EQ(balances[0], balances[1]);
}

TEST_F(ReplicasTraining, ResumesToSameBits) {
  recipe::Recipe two = one_process();
  two.pipeline.micro_batches = 2;
  two.mesh.replicate = 2;
  const TrainResult whole = on_ranks(2, two, own_hooks());
  recipe::Recipe again = two;
  again.name += "_again";
  const TrainResult stopped = on_ranks(2, again, own_hooks(3));
  EXPECT_FALSE(stopped.finished);
  const TrainResult rest = on_ranks(2, again, own_hooks(), stopped.run_folder);
  expect_same(whole.run_folder / "last", rest.run_folder / "last");
}

TEST_F(ReplicasTraining, RefusesMeshThatDoesNotMatchRanks) {
  recipe::Recipe two = one_process();
  two.mesh.replicate = 2;
  try {
    train(two, own_hooks());
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("replicate = 2, but there is 1 rank"));
    EXPECT_THAT(error.what(), HasSubstr("--ranks 2"));
  }
  EXPECT_THROW(on_ranks(3, two, own_hooks()), UsageError);
  two.train.batch = 1;
  EXPECT_THROW(on_ranks(2, two, own_hooks()), UsageError);
}

struct Shards {
  std::int64_t pipeline, replicate, shard;
  std::string level;
};

class ShardedTraining : public ReplicasTraining, public ::testing::WithParamInterface<Shards> {
 protected:
  static recipe::Recipe divided(const Shards& shards) {
    recipe::Recipe recipe = one_process();
    recipe.mesh = {.pipeline = shards.pipeline,
                   .replicate = shards.replicate,
                   .shard = shards.shard,
                   .shard_level = shards.level};
    recipe.pipeline.micro_batches = 4 / recipe.mesh.parts();
    if (shards.pipeline == 2) recipe.pipeline.balance = {2, 2};
    return recipe;
  }
  static int ranks(const Shards& shards) {
    return static_cast<int>(shards.pipeline * shards.replicate * shards.shard);
  }
};

TEST_P(ShardedTraining, HasNumbersOfOneProcess) {
  const TrainResult one = train(one_process(), own_hooks());
  const Shards shards = GetParam();
  const TrainResult many = on_ranks(ranks(shards), divided(shards), own_hooks());
  expect_close_run(one, many);
  expect_close(one.run_folder / "best.safetensors", many.run_folder / "best.safetensors");
}

// Resumes within a step of two batches, whose gradients are sharded. The last validation batch has
// fewer samples than there are shards.
TEST_P(ShardedTraining, ResumesToSameBits) {
  const Shards shards = GetParam();
  recipe::Recipe recipe = divided(shards);
  recipe.train.accumulate = 2;
  recipe.train.batch = 9;
  const TrainResult whole = on_ranks(ranks(shards), recipe, own_hooks());
  TrainHooks stops = own_hooks();
  stops.should_stop = [batches = 0]() mutable { return ++batches == 3; };
  const TrainResult stopped = on_ranks(ranks(shards), recipe, stops);
  EXPECT_FALSE(stopped.finished);
  const TrainResult rest = on_ranks(ranks(shards), {}, own_hooks(), stopped.run_folder);
  expect_same(whole.run_folder / "last", rest.run_folder / "last");
  EXPECT_EQ(metrics(whole.run_folder), metrics(rest.run_folder));
}

// Weights are most of its memory.
nn::Layers make_wide(const models::ModelOptions& options) {
  nn::Layers net(nn::Seed{options.seed});
  net.add("rows", [](const at::Tensor& x) { return x.flatten(1); });
  net.add("one", [] { return torch::nn::Linear(784, 256); });
  net.add("two", [] { return torch::nn::Linear(256, 256); });
  net.add("out", [] { return torch::nn::Linear(256, 10); });
  return net;
}

TEST_P(ShardedTraining, HoldsNoMoreThanPredicted) {
  const Shards shards = GetParam();
  recipe::Recipe recipe = divided(shards);
  recipe.devices.use = text("virtual:", ranks(shards));
  recipe.train.epochs = 1;
  TrainHooks wide = own_hooks();
  wide.models["without_norm"] = make_wide;
  const TrainResult result = on_ranks(ranks(shards), recipe, wide);
  int known = 0;  // of the first replica
  for (const DevicePeak& peak : result.peaks) {
    if (peak.predicted == 0) continue;
    ++known;
    EXPECT_LE(peak.measured, peak.predicted) << peak.device;
    EXPECT_LE(peak.predicted, 2 * peak.measured) << peak.device;
  }
  EXPECT_EQ(known, shards.pipeline);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, ShardedTraining,
    ::testing::Values(Shards{1, 1, 2, "optimizer_state"}, Shards{1, 1, 2, "gradients"},
                      Shards{1, 2, 2, "parameters"}, Shards{2, 1, 2, "parameters"}),
    [](const auto& shards) {
      const Shards& s = shards.param;
      return text("p", s.pipeline, "r", s.replicate, "s", s.shard, "_", s.level);
    });

// Eight equal layers, whose weights are most of the memory.
nn::Layers make_deep(const models::ModelOptions& options) {
  nn::Layers net(nn::Seed{options.seed});
  net.add("rows", [](const at::Tensor& x) { return x.flatten(1); });
  net.add("in", [] { return torch::nn::Linear(784, 8); });
  net.add("wider", [] { return torch::nn::Linear(8, 512); });
  for (int i = 0; i < 8; ++i) net.add(text("layer", i), [] { return torch::nn::Linear(512, 512); });
  net.add("out", [] { return torch::nn::Linear(512, 10); });
  return net;
}

// A process of its own: virtual devices come before the first backward.
class ShardedPeaks : public ReplicasTraining {};

// A step of several micro-batches keeps whole gradients until its last backward, and a shard of
// zeros beside them.
TEST_F(ShardedPeaks, ArePredicted) {
  TrainHooks deep = own_hooks(/*stop_after_steps=*/3);
  deep.models["without_norm"] = make_deep;
  for (const char* const level : {"optimizer_state", "gradients", "parameters"})
    for (const int micro_batches : {1, 2}) {
      recipe::Recipe recipe = one_process();
      recipe.devices.use = "virtual:2";
      recipe.mesh = {.pipeline = 1, .replicate = 1, .shard = 2, .shard_level = level};
      recipe.pipeline.micro_batches = micro_batches;
      const DevicePeak peak = on_ranks(2, recipe, deep).peaks.at(0);
      // The checksum of a shard takes up to 1.5 MiB more for a moment.
      EXPECT_LE(peak.measured, peak.predicted + peak.predicted / 20 + (Bytes{3} << 19))
          << level << " with " << micro_batches << " micro-batches";
      EXPECT_LE(peak.predicted, peak.measured + peak.measured / 10)
          << level << " with " << micro_batches << " micro-batches";
    }
}

// A chain of linear layers, large beside its activations. A block is about 1 % of the peak: whether
// its reduction has ended when the next one starts is a matter of time, and must not decide a test.
nn::Layers make_chain(const models::ModelOptions& options) {
  nn::Layers net(nn::Seed{options.seed});
  net.add("flat", [](const at::Tensor& x) { return x.flatten(1); });
  net.add("in", [] { return torch::nn::Linear(28 * 28, 128); });
  for (int block = 0; block < 16; ++block)
    net.add(text("block.", block), [] { return torch::nn::Linear(128, 128); });
  net.add("out", [] { return torch::nn::Linear(128, 10); });
  return net;
}

class ShardedKeysTraining : public ReplicasTraining {
 protected:
  static recipe::Recipe chain() {
    recipe::Recipe recipe = on_cpu({});
    recipe.model.name = "chain";
    recipe.pipeline.micro_batches = 1;
    recipe.pipeline.recompute = {"never"};
    recipe.optimizer.name = "adam";
    recipe.mesh.shard = 2;
    return recipe;
  }
  static TrainHooks chain_hooks() {
    TrainHooks own = own_hooks();
    own.models["chain"] = make_chain;
    return own;
  }

  // The meters of a run show what `trestle levels` prints for its recipe.
  void expect_peaks_of_levels(recipe::Recipe recipe, int ranks, const TrainHooks& hooks) {
    recipe.devices.use = text("virtual:", ranks);
    recipe.train.epochs = 1;
    constexpr Bytes bucket = 32 << 10;
    LevelsOptions options{
        .ranks = ranks, .replicate = 1, .steps = 2, .batch = recipe.train.batch, .bucket = bucket};
    options.optimizer.name = recipe.optimizer.name;
    const std::string reshard = recipe.mesh.reshard;
    ShardOptions chosen{.level = ShardLevel::Parameters};
    recipe.mesh.shard = ranks;
    set_sharding(recipe.mesh, &chosen);
    options.checkpoint = recipe.pipeline.checkpoint;
    options.checkpoint_segments = static_cast<int>(recipe.pipeline.checkpoint_segments);
    options.reshard_after_forward = chosen.reshard_after_forward;
    const auto make = [&] { return make_model(recipe, hooks.models); };
    const auto rows = measure_levels(make, {1, 28, 28}, options);
    for (const LevelRow& row : rows) {
      const bool parameters = row.level == ShardLevel::Parameters;
      if (row.ranks == 1 || (reshard != "yes" && !parameters)) continue;
      recipe.mesh = {.replicate = row.replicate, .shard = row.shard};
      if (row.shard > 1) recipe.mesh.shard_level = to_string(row.level);
      if (parameters) recipe.mesh.reshard = reshard;
      if (!parameters) recipe.mesh.bucket = "32KiB";
      const TrainResult result = on_ranks(ranks, recipe, hooks);
      Bytes peak = 0;
      for (const auto& device : result.peaks) peak = std::max(peak, device.measured);
      // Without a gather to wait for, a backward may be one unit ahead of its reductions.
      const double tolerance = reshard == "yes" ? 0.03 : 0.05;
      EXPECT_NEAR(static_cast<double>(peak) / static_cast<double>(row.measured.peak), 1, tolerance)
          << row.name << ", reshard " << reshard;
    }
  }
};

TEST_F(ShardedKeysTraining, HasPeaksThatLevelsMeasures) {
  expect_peaks_of_levels(chain(), 2, chain_hooks());
}

TEST_F(ShardedKeysTraining, HasPeaksThatLevelsMeasuresWithoutReshard) {
  recipe::Recipe recipe = chain();
  recipe.model.name = "resnet18";
  recipe.model.width = 16;
  recipe.mesh.reshard = "no";
  expect_peaks_of_levels(recipe, 2, chain_hooks());
}

TEST_F(ShardedKeysTraining, HasPeaksThatLevelsMeasuresWithSegments) {
  recipe::Recipe recipe = chain();
  recipe.pipeline.checkpoint_segments = 3;
  expect_peaks_of_levels(recipe, 2, chain_hooks());
}

TEST_F(ShardedKeysTraining, HasPeaksThatLevelsMeasuresWithNeighbours) {
  recipe::Recipe recipe = chain();
  recipe.model.name = "resnet18";
  recipe.model.width = 16;
  recipe.mesh.reshard = "2";
  expect_peaks_of_levels(recipe, 4, chain_hooks());
}

TEST(RunRanks, FormGroupsOfNeighboursThatKeepParameters) {
  spawn(4, [](World& world) {
    RunRanks ranks(&world);
    ranks.lay_out({.shard = 4, .reshard = "2"});
    ASSERT_TRUE(ranks.replica_groups().neighbours.valid());
    EXPECT_EQ(ranks.replica_groups().neighbours.size(), 2);
    RunRanks others(&world);
    others.lay_out({.shard = 4});
    EXPECT_FALSE(others.replica_groups().neighbours.valid());
  });
}

// Each key of [mesh] changes memory or communication, and no number.
TEST_F(ShardedKeysTraining, HasNumbersOfOneProcessForEachKey) {
  recipe::Recipe one = chain();
  one.mesh = {};
  one.train.epochs = 1;
  one.optimizer.name = "sgd";  // Adam's first steps enlarge rounding
  const TrainResult expected = train(one, chain_hooks());
  const auto expect_same_numbers = [&](const std::function<void(recipe::Recipe&)>& change) {
    recipe::Recipe own = chain();
    own.train.epochs = 1;
    own.optimizer.name = one.optimizer.name;
    change(own);
    expect_close_run(expected, on_ranks(2, own, chain_hooks()));
  };
  expect_same_numbers([](recipe::Recipe& own) { own.mesh.units = {"stage"}; });
  expect_same_numbers([](recipe::Recipe& own) { own.mesh.units = {"300KiB"}; });
  expect_same_numbers([](recipe::Recipe& own) { own.mesh.units = {"block", "out"}; });
  expect_same_numbers([](recipe::Recipe& own) { own.mesh.reshard = "no"; });
  expect_same_numbers([](recipe::Recipe& own) { own.mesh.reshard = "2"; });
  expect_same_numbers([](recipe::Recipe& own) { own.mesh.offload = true; });
  expect_same_numbers([](recipe::Recipe& own) { own.pipeline.checkpoint = {"layers"}; });
  expect_same_numbers([](recipe::Recipe& own) { own.pipeline.checkpoint_segments = 4; });
  expect_same_numbers([](recipe::Recipe& own) {
    own.mesh.shard_level = "gradients";
    own.mesh.bucket = "100KiB";
  });
}

TEST_F(ShardedKeysTraining, RefusesKeysWithoutEffect) {
  const auto message = [](const std::function<void(recipe::Recipe&)>& change) {
    recipe::Recipe recipe = chain();
    change(recipe);
    return message_of([&] { on_ranks(2, recipe, chain_hooks()); });
  };
  EXPECT_THAT(message([](auto& recipe) {
                recipe.pipeline.checkpoint = {"layers"};
                recipe.pipeline.checkpoint_segments = 2;
              }),
              HasSubstr("'checkpoint' and 'checkpoint_segments' in [pipeline] are both given"));
  EXPECT_THAT(message([](auto& recipe) { recipe.mesh = {.replicate = 2, .units = {"stage"}}; }),
              HasSubstr("'units' in [mesh] has no effect without"));
  EXPECT_THAT(message([](auto& recipe) {
                recipe.mesh.shard_level = "gradients";
                recipe.mesh.reshard = "no";
              }),
              HasSubstr("'reshard' in [mesh] has no effect without"));
  EXPECT_THAT(message([](auto& recipe) { recipe.mesh.bucket = "1MiB"; }),
              HasSubstr("each unit is a bucket"));
  EXPECT_THAT(message([](auto& recipe) { recipe.mesh.reshard = "3"; }),
              HasSubstr("a number that divides shard = 2"));
  EXPECT_THAT(message([](auto& recipe) {
                recipe.mesh.units = {"stage", "out"};
              }),
              HasSubstr("beside other words"));
  EXPECT_THAT(message([](auto& recipe) { recipe.mesh.units = {"blok"}; }),
              HasSubstr("unknown unit 'blok'"));
  recipe::Recipe on_paper = chain();
  on_paper.mesh.units = {"blok"};
  EXPECT_THAT(message_of([&] { plan_run(on_paper, chain_hooks()); }),
              HasSubstr("unknown unit 'blok'"));
}

// The bytes that a plan prints are those that the engine counts.
TEST(ShardingPlan, CountsBytesThatAStageSends) {
  struct Case {
    const char* units;
    const char* reshard;
    int micro_batches;
    Recompute recompute;
    int segments = 0;
    std::vector<std::string> frozen = {};
  };
  const int layers = static_cast<int>(make_chain({}).size());
  for (const Case& given :
       {Case{"layers", "yes", 1, Recompute::Never}, Case{"layers", "yes", 3, Recompute::ExceptLast},
        Case{"layers", "no", 3, Recompute::Never}, Case{"stage", "yes", 3, Recompute::Never},
        Case{"layers", "yes", 2, Recompute::Never, 4},
        Case{"layers", "yes", 1, Recompute::Never, 0, {"in.", "block.3."}},
        Case{"layers", "yes", 3, Recompute::ExceptLast, 0, {"in.", "block.3."}},
        Case{"layers", "no", 2, Recompute::Never, 0, {"in.", "block.3."}},
        Case{"stage", "yes", 2, Recompute::Never, 0, {"in.", "block.3."}}}) {
    const auto make = [&] {
      nn::Layers net = make_chain({});
      for (const auto& [name, parameter] : net.named_parameters())
        for (const std::string& begin : given.frozen)
          if (name.starts_with(begin)) at::Tensor(parameter).set_requires_grad(false);
      return net;
    };
    recipe::Recipe::Mesh mesh{.shard = 2, .units = {given.units}, .reshard = given.reshard};
    const auto sent = spawn(2, [&](World& world) {
      ShardOptions options{.level = ShardLevel::Parameters};
      set_sharding(mesh, &options);
      Parallel parallel(make(), DeviceMesh(world, {{"shard", 2}}),
                        {.level = ShardLevel::Parameters,
                         .stage_units = stage_units_of(mesh),
                         .reshard_after_forward = options.reshard_after_forward,
                         .options = {.balance = {layers},
                                     .micro_batches = given.micro_batches,
                                     .recompute = given.recompute,
                                     .checkpoint_segments = given.segments}});
      const at::Tensor x = torch::rand({6, 1, 28, 28}), y = torch::rand({6, 10});
      ShardReport before;
      for (int step = 0; step < 2; ++step) {
        before = parallel.sharded(0)->report();
        parallel.step(x, y, nn::mean_squared_error());
      }
      const ShardReport after = parallel.sharded(0)->report();
      return 0.5 *
             static_cast<double>(after.reduced - before.reduced + after.gathered - before.gathered);
    })[0];
    StageParameters stage;
    for (const auto& [name, parameter] : make().named_parameters()) {
      const auto bytes = static_cast<Bytes>(parameter.nbytes());
      (parameter.requires_grad() ? stage.trained : stage.frozen) += bytes;
    }
    const SentBytes expected = bytes_sent(
        mesh, stage, {.micro_batches = given.micro_batches, .recompute = given.recompute});
    EXPECT_NEAR(sent / expected.all(), 1, 1e-3)
        << given.units << " " << given.micro_batches << " " << given.frozen.size();
  }
}

// The backward hides all but the last of four messages; each run of a stage waits for its gathers.
TEST(ShardingPlan, AddsTheDurationsOfCommunication) {
  const MessageCost message{.seconds = 0.5, .seconds_per_byte = 0.01};
  simulate::StageCost replicated{.backward = 100};
  add_communication({.reduce = 1000}, message, {.reduce = 4}, &replicated);
  EXPECT_DOUBLE_EQ(replicated.reduce, 12 - 0.75 * 12);
  EXPECT_EQ(replicated.unshard, 0);
  simulate::StageCost busy{.backward = 4};  // too short to hide the first three
  add_communication({.reduce = 1000}, message, {.reduce = 4}, &busy);
  EXPECT_DOUBLE_EQ(busy.reduce, 12 - 0.75 * 4);
  // Ranks on all cores have none for the reduction. They wait for each agreement.
  simulate::StageCost on_all_cores{.backward = 100};
  add_communication({.reduce = 1000}, message,
                    {.reduce = 4, .agreements = 3, .beside_backward = false}, &on_all_cores);
  EXPECT_DOUBLE_EQ(on_all_cores.reduce, 12 + 3 * 0.5);
  simulate::StageCost kept;
  add_communication({.first_gather = 200, .gathers = 1}, message, {.gather = 2, .reduce = 0},
                    &kept);
  EXPECT_DOUBLE_EQ(kept.unshard, 2 + 2 * 0.5);
  EXPECT_DOUBLE_EQ(kept.forward, simulate::StageCost().forward);
  simulate::StageCost gathered;
  add_communication(
      {.first_gather = 400, .next_gather = 100, .gathers = 3, .gathers_in_each_run = true}, message,
      {.gather = 2, .reduce = 0}, &gathered);
  EXPECT_DOUBLE_EQ(gathered.forward, 1 + 2 + 1);
  EXPECT_DOUBLE_EQ(gathered.backward, 2 + 2 + 1);
}

}  // namespace
}  // namespace trestle::train
