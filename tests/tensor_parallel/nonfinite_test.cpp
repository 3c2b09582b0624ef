// An infinity or a NaN on one tensor rank alone: all ranks find it, name it and do the same.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/models/tiny_transformers.h"
#include "tests/tensor_parallel/checks.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/token_loss.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/pipeline/find_nonfinite.h"
#include "trestle/precision/gradient_scaler.h"
#include "trestle/sharding/sharded.h"
#include "trestle/sharding/unscale.h"

namespace trestle::testing {
namespace {

using ::testing::HasSubstr;

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

// One is split, the other one is whole on every rank.
const char* const split_name = "blocks.0.mlp.down.weight";
const char* const copied = "blocks.0.mlp_norm.weight";

struct Damage {
  int stages = 1, shard = 1;
  ShardLevel level = ShardLevel::None;
  Precision precision = Precision::Float32;
  double max_norm = 0;
  std::string parameter = split_name;
  int rank = 1;  // of the tensor ranks
  double value = nan_value;

  std::string name() const {
    return text(stages, " stages, ", shard, " shards, precision ", static_cast<int>(precision),
                ", max_norm ", max_norm, ", ", parameter, ", rank ", rank, ", ", value);
  }
};

at::Tensor batch_for(int step, std::int64_t rows) {
  return (torch::arange(rows * 7) * (37 + 2 * step) % 40).view({rows, 7});
}

// A model on a mesh whose optimizers are the pipeline's.
struct Split {
  Split(World& world, const Damage& given)
      : mesh(world, {{"pipeline", given.stages}, {"shard", given.shard}, {"tensor", 2}}),
        ranks(mesh),
        parallel(models::transformer(models::tiny_llama(), {.tensor = {.ranks = ranks}}), mesh,
                 options(given)),
        scaler({.initial_scale = 256, .growth_interval = 2}) {}

  ParallelOptions options(const Damage& given) const {
    ParallelOptions made{.tensor_ranks = ranks, .level = given.level};
    if (given.stages == 2) made.options.balance = {2, 3};
    made.options.micro_batches = 2;
    made.options.numerics.precision = given.precision;
    made.options.optimizer.clip_grad_norm = given.max_norm;
    made.options.optimizer.make = [](int, const NamedTensors& parameters) {
      return std::make_unique<torch::optim::SGD>(without_names(parameters), 0.1);
    };
    return made;
  }

  StepResult step(int number, bool scaled) {
    const at::Tensor ids = batch_for(number, 4).narrow(0, mesh.coordinate("shard") * 2, 2);
    const auto result = parallel.step(
        ids.narrow(1, 0, 6), ids.narrow(1, 1, 6), nn::token_cross_entropy(),
        {.scaler = scaled ? &scaler : nullptr, .nonfinite = StepOptions::NonfiniteGradients::Keep});
    return result;
  }

  std::map<std::string, at::Tensor> weights() const {
    std::map<std::string, at::Tensor> all;
    for (const auto& [name, tensor] : parallel.named_parameters())
      all[name] = tensor.detach().clone();
    return all;
  }

  DeviceMesh mesh;
  tensor_parallel::TensorRanks ranks;
  Parallel parallel;
  precision::GradientScaler scaler;
};

// Trains four steps; the gradient of the third one is damaged on one tensor rank.
void expect_skipped_everywhere(const Damage& given) {
  SCOPED_TRACE(given.name());
  const bool scaled = given.precision == Precision::Float16;
  spawn(given.stages * given.shard * 2, [&](World& world) {
    Split split(world, given);
    const auto damaged = std::make_shared<bool>(false);
    for (const auto& [name, parameter] : split.parallel.pipeline().named_parameters())
      if (name == given.parameter && split.ranks.rank() == given.rank)
        parameter.register_hook([damaged, value = given.value](const at::Tensor& gradient) {
          if (!*damaged) return gradient;
          at::Tensor changed = gradient.clone();
          changed.flatten()[0] = value;
          return changed;
        });
    for (int step = 0; step < 4; ++step) {
      *damaged = step == 2;
      const auto before = split.weights();
      const double scale = split.scaler.scale();
      const StepResult result = split.step(step, scaled);
      // All ranks have the same loss, norm, verdict and scale.
      const std::vector<double> own = {result.loss, std::isfinite(*result.gradient_norm) ? 1. : 0.,
                                       result.stepped ? 1. : 0., split.scaler.scale()};
      for (const auto& other : comm::all_gather_values(world.group(), own)) EXPECT_EQ(own, other);
      EXPECT_TRUE(std::isfinite(result.loss));
      EXPECT_EQ(result.stepped, step != 2) << "step " << step;
      for (const auto& [name, tensor] : split.weights()) {
        if (tensor.numel() == 0) continue;
        EXPECT_EQ(at::equal(tensor, before.at(name)), step == 2) << name << ", step " << step;
      }
      if (scaled && step == 2) {
        EXPECT_EQ(split.scaler.scale(), scale / 2);
      }
      if (step != 2) continue;
      if (given.shard == 1) {
        const std::string found = find_nonfinite_gradient(split.parallel.pipeline());
        EXPECT_THAT(found, HasSubstr(text("the gradient of '", given.parameter, "' (")));
        EXPECT_THAT(found, HasSubstr(text("tensor rank ", given.rank, ", stage 0)")));
        for (const auto& other : comm::all_gather_values(world.group(), found))
          EXPECT_EQ(found, other);
      }
      split.parallel.zero_grad();
    }
  });
}

TEST(NonfiniteOnOneRank, StepIsSkippedOnAllRanksInFp32) {
  for (const double max_norm : {0.0, 0.5})
    for (const char* parameter : {split_name, copied})
      for (const int rank : {0, 1})
        expect_skipped_everywhere({.max_norm = max_norm, .parameter = parameter, .rank = rank});
  expect_skipped_everywhere({.parameter = copied, .value = infinity});
  expect_skipped_everywhere({.parameter = split_name, .value = -infinity});
}

TEST(NonfiniteOnOneRank, StepIsSkippedOnAllRanksAndScaleHalvedInFp16) {
  for (const double max_norm : {0.0, 0.5})
    for (const char* parameter : {split_name, copied})
      expect_skipped_everywhere({.precision = Precision::Float16,
                                 .max_norm = max_norm,
                                 .parameter = parameter,
                                 .value = infinity});
}

TEST(NonfiniteOnOneRank, StepIsSkippedOnAllStagesAndShards) {
  for (const char* parameter : {split_name, copied}) {
    expect_skipped_everywhere({.stages = 2, .parameter = parameter});
    expect_skipped_everywhere(
        {.stages = 2, .precision = Precision::Float16, .max_norm = 0.5, .parameter = parameter});
    for (const auto level : {ShardLevel::OptimizerState, ShardLevel::Parameters})
      expect_skipped_everywhere({.shard = 2, .level = level, .parameter = parameter});
  }
}

// With the program's own optimizer: the norm gives the verdict that a rank's own gradients cannot.
TEST(NonfiniteOnOneRank, ClippingGivesAllRanksTheVerdict) {
  for (const char* parameter : {split_name, copied})
    for (const double p : {2.0, infinity})
      spawn(2, [&](World& world) {
        const DeviceMesh mesh(world, {{"tensor", 2}});
        const tensor_parallel::TensorRanks ranks(mesh);
        Parallel parallel(models::transformer(models::tiny_llama(), {.tensor = {.ranks = ranks}}),
                          mesh, {.tensor_ranks = ranks});
        const at::Tensor ids = batch_for(0, 2);
        precision::GradientScaler scaler({.initial_scale = 256});
        parallel.step(ids.narrow(1, 0, 6), ids.narrow(1, 1, 6), nn::token_cross_entropy(),
                      {.gradient_scale = scaler.scale()});
        for (const auto& [name, tensor] : parallel.named_parameters())
          if (name == parameter && ranks.rank() == 1) tensor.grad().flatten()[0] = nan_value;
        EXPECT_EQ(scaler.unscale(parallel.parameters()), ranks.rank() == 0);
        const double norm = parallel.clip_grad_norm(1, {.p = p});
        EXPECT_FALSE(std::isfinite(norm)) << "rank " << ranks.rank();
        if (!std::isfinite(norm)) scaler.note_overflow();
        scaler.update();
        EXPECT_EQ(scaler.scale(), 128);
      });
}

TEST(NonfiniteOnOneRank, ParameterIsFoundAndNamedOnAllRanks) {
  for (const int stages : {1, 2})
    for (const char* parameter : {split_name, copied})
      for (const double value : {nan_value, infinity}) {
        SCOPED_TRACE(text(stages, " stages, ", parameter, " = ", value));
        spawn(2 * stages, [&](World& world) {
          Split split(world, {.stages = stages});
          const at::NoGradGuard no_grad;
          for (const auto& [name, tensor] : split.parallel.pipeline().named_parameters())
            if (name == parameter && split.ranks.rank() == 1) tensor.flatten()[0] = value;
          StepResult result;
          {
            const torch::AutoGradMode grad(true);
            result = split.step(0, false);
          }
          EXPECT_FALSE(std::isfinite(result.loss)) << "rank " << world.rank();
          EXPECT_FALSE(result.stepped);
          const at::Tensor ids = batch_for(0, 4).narrow(0, 0, 2).narrow(1, 0, 6);
          const std::string found = find_nonfinite({ids}, split.parallel.pipeline());
          EXPECT_THAT(found, HasSubstr(text("parameter '", parameter, "' (")));
          EXPECT_THAT(found, HasSubstr("tensor rank 1, stage 0)"));
        });
      }
}

// A pipeline that does not know the tensor ranks would clip by another norm on each.
TEST(NormsOfSlices, PipelineAloneRefusesToClip) {
  spawn(2, [](World& world) {
    const tensor_parallel::TensorRanks ranks(world.group());
    Pipeline pipeline(models::transformer(models::tiny_gpt2(), {.tensor = {.ranks = ranks}}),
                      {.micro_batches = 2});
    const at::Tensor ids = torch::arange(24).view({4, 6});
    pipeline.step(ids, ids, nn::token_cross_entropy());
    for (const auto& call : {std::function([&] { pipeline.clip_grad_norm(1); }),
                             std::function([&] { pipeline.grad_norm(); })})
      EXPECT_THAT(refusal_of(call), HasSubstr("their norm would be that of this rank's slices"));
  });
}

// Sharded knows only the ranks that shard: it would take another norm, or another verdict, on each
// tensor rank.
TEST(NormsOfSlices, ShardedRefusesToClipAndUnscale) {
  spawn(2, [](World& world) {
    const DeviceMesh mesh(world, {{"shard", 1}, {"tensor", 2}});
    const tensor_parallel::TensorRanks ranks(mesh);
    const nn::Layers net = models::transformer(models::tiny_gpt2(), {.tensor = {.ranks = ranks}});
    Sharded sharded(net, mesh, {.level = ShardLevel::OptimizerState});
    precision::GradientScaler scaler;
    sharded.backward(sharded.forward(torch::arange(6).view({1, 6})).sum());
    for (const auto& call : {std::function([&] { sharded.clip_grad_norm(1); }),
                             std::function([&] { unscale(scaler, sharded); })}) {
      const std::string refusal = refusal_of(call);
      EXPECT_THAT(refusal, HasSubstr("the norm of this rank's slices alone"));
      EXPECT_THAT(refusal, HasSubstr("trestle::parallelize()"));
    }
  });
}

}  // namespace
}  // namespace trestle::testing
