// Every mesh of pipeline x replicate x shard x tensor trains as the plain model does.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "tests/models/tiny_transformers.h"
#include "tests/tensor_parallel/checks.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/token_loss.h"
#include "trestle/optim/clip_grad_norm.h"
#include "trestle/parallel/checkpoint_layers.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/sharding/sharded_parameters.h"

namespace trestle::testing {
namespace {

using models::TransformerConfig;

enum class Recomputed { None, Attention, Blocks };

struct Case {
  int pipeline = 1, replicate = 1, shard = 1, tensor = 1;
  ShardLevel level = ShardLevel::None;
  std::string schedule = "gpipe";
  Recomputed recomputed = Recomputed::None;
  bool sequence = false;
  bool llama = false;
  bool adapters = false;  // are trained, and all other weights are frozen

  int ranks() const { return pipeline * replicate * shard * tensor; }
  std::string name() const {
    const char* const words[] = {"none", "attention", "blocks"};
    return text(llama ? "llama" : "gpt2", "_", pipeline, "x", replicate, "x", shard, "x", tensor,
                "_", to_string(level), "_", schedule, "_", words[static_cast<int>(recomputed)],
                sequence ? "_sequence" : "", adapters ? "_adapters" : "");
  }
};

// Dropout at all places; 9 examples, which 2 and 8 replicas share unevenly.
TransformerConfig config_of(const Case& given) {
  TransformerConfig config = given.llama ? models::tiny_llama() : models::tiny_gpt2();
  config.dropout = {.embedding = 0.1, .residual = 0.1, .attention = 0.1};
  config.vocabulary = 43;
  return config;
}

models::TransformerOptions options_of(const Case& given) {
  models::TransformerOptions options{.attention = models::AttentionCore::Written};
  options.recompute_attention = given.recomputed == Recomputed::Attention;
  if (!given.adapters) return options;
  // A large alpha: gradients of both matrices count from the second step on.
  options.adapters = {
      .rank = 2, .alpha = 64, .dropout = 0.1, .targets = models::adapter_targets(config_of(given))};
  return options;
}

constexpr std::int64_t examples = 9, tokens = 6;
constexpr int steps = 2, micro_batches = 2;
constexpr double rate = 0.5, max_norm = 1;

at::Tensor ids_of(int step) {
  return (torch::arange(examples * (tokens + 1)) * (37 + step) % 43).view({examples, tokens + 1});
}

using Weights = std::map<std::string, at::Tensor>;

// SGD by hand with clipping, by one process without any of this.
struct Plain {
  std::vector<double> losses, norms;
  Weights weights;
};

Plain train_plainly(const Case& given) {
  nn::Layers net = models::transformer(config_of(given), options_of(given));
  const nn::Graph graph = net.graph();
  Plain plain;
  for (int step = 0; step < steps; ++step) {
    net.zero_grad();
    const at::Tensor ids = ids_of(step);
    const at::Tensor scores =
        nn::run(graph, {ids.narrow(1, 0, tokens)}, {.seed = 5, .step = step}).at(0);
    const at::Tensor loss =
        at::cross_entropy_loss(scores.flatten(0, 1), ids.narrow(1, 1, tokens).flatten());
    loss.backward();
    plain.losses.push_back(loss.item<double>());
    plain.norms.push_back(optim::clip_grad_norm(net.parameters(), max_norm));
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : net.named_parameters())
      if (tensor.requires_grad()) tensor.sub_(tensor.grad(), rate);
  }
  for (const auto& [name, tensor] : net.named_parameters()) plain.weights[name] = tensor.detach();
  return plain;
}

void expect_near(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const double error = (a - b).norm().item<double>(), size = b.norm().item<double>();
  EXPECT_LE(error, 2e-5 * size + 1e-7)
      << what << ": relative error " << error / size << ", of a shifted copy "
      << (b - b.roll(1, 0)).norm().item<double>() / size;
}

Parallel parallel_of(const Case& given, const DeviceMesh& mesh, at::ScalarType type = at::kFloat) {
  const tensor_parallel::TensorRanks ranks(mesh);
  models::TransformerOptions of_model = options_of(given);
  of_model.type = type;
  of_model.tensor = {.ranks = ranks, .sequence = given.sequence};
  ParallelOptions options{.tensor_ranks = ranks, .level = given.level};
  options.options.micro_batches = micro_batches;
  options.options.schedule = given.schedule;
  options.options.numerics.seed = 5;
  if (given.recomputed == Recomputed::Blocks)
    options.options.wrap_layers = checkpoint_layers({"blocks"});
  if (given.pipeline == 2) options.options.balance = {2, 3};
  if (given.pipeline == 4) options.options.balance = {1, 1, 1, 2};
  return {models::transformer(config_of(given), of_model), mesh, options};
}

DeviceMesh mesh_of(const Case& given, World& world) {
  return DeviceMesh(world, {{"pipeline", given.pipeline},
                            {"replicate", given.replicate},
                            {"shard", given.shard},
                            {"tensor", given.tensor}});
}

// This replica's share of a step's rows.
at::Tensor share_of(const at::Tensor& ids, const Parallel& parallel) {
  const std::int64_t begin = examples * parallel.replica() / parallel.replicas();
  const std::int64_t end = examples * (parallel.replica() + 1) / parallel.replicas();
  return ids.narrow(0, begin, end - begin);
}

void expect_plain_training(const Case& given) {
  SCOPED_TRACE(given.name());
  const Plain plain = train_plainly(given);
  spawn(given.ranks(), [&](World& world) {
    const DeviceMesh mesh = mesh_of(given, world);
    Parallel parallel = parallel_of(given, mesh);
    for (int step = 0; step < steps; ++step) {
      parallel.zero_grad();
      const at::Tensor ids = share_of(ids_of(step), parallel);
      const auto result = parallel.step(ids.narrow(1, 0, tokens), ids.narrow(1, 1, tokens),
                                        nn::token_cross_entropy());
      EXPECT_NEAR(result.loss, plain.losses[step], 1e-5);
      EXPECT_NEAR(parallel.clip_grad_norm(max_norm), plain.norms[step], 2e-5 * plain.norms[step]);
      const at::NoGradGuard no_grad;
      for (const auto& [name, tensor] : parallel.named_parameters())
        if (tensor.grad().defined()) tensor.sub_(tensor.grad(), rate);
      for (int stage = 0; stage < parallel.pipeline().stage_count(); ++stage)
        if (parallel.pipeline().has_stage(stage) && parallel.sharded(stage))
          parallel.sharded(stage)->shards_changed();
    }
    const nn::ParameterSlices slices = parallel.rank_slices().parameters;
    const int stage = mesh.coordinate("pipeline");
    std::optional<ShardedParameters::Unsharded> whole;
    if (parallel.sharded(stage)) whole.emplace(parallel.sharded(stage)->unsharded());
    for (const auto& [name, tensor] : parallel.pipeline().named_parameters()) {
      const auto slice = slices.find(name);
      const at::Tensor& all = plain.weights.at(name);
      expect_near(tensor.detach(), slice == slices.end() ? all : slice_of(all, slice->second),
                  name);
    }
  });
}

// Every mesh of 8 ranks with at most 4 tensor ranks, every schedule, recomputation and model.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int tensor : {1, 2, 4})
    for (const int pipeline : {1, 2, 4})
      for (const int shard : {1, 2, 4, 8}) {
        const int rest = 8 / tensor / pipeline / shard;
        if (rest < 1 || rest * shard * pipeline * tensor != 8) continue;
        for (const ShardLevel level : {ShardLevel::None, ShardLevel::OptimizerState,
                                       ShardLevel::Gradients, ShardLevel::Parameters}) {
          if ((shard == 1) != (level == ShardLevel::None)) continue;
          for (const char* schedule : {"gpipe", "1f1b"})
            for (const auto recomputed :
                 {Recomputed::None, Recomputed::Attention, Recomputed::Blocks})
              for (const bool llama : {false, true})
                for (const bool sequence : {false, true})
                  if (tensor > 1 || !sequence)
                    cases.push_back({pipeline, rest, shard, tensor, level, schedule, recomputed,
                                     sequence, llama});
        }
      }
  return cases;
}

// Each mesh and level with a tensor dimension once, and the other choices in turn.
std::vector<Case> covering_cases() {
  std::vector<Case> cases;
  std::map<std::string, int> seen;
  int turn = 0;
  for (const Case& one : all_cases()) {
    const std::string mesh = text(one.pipeline, one.shard, one.tensor, to_string(one.level));
    const int number = seen[mesh]++;
    if (one.tensor > 1 && number == turn % 24) {
      cases.push_back(one);
      turn += 7;
    }
  }
  return cases;
}

TEST(MeshMatrix, CoveringMeshesTrainAsThePlainModel) {
  const std::vector<Case> cases = covering_cases();
  EXPECT_GE(cases.size(), 15u);
  for (const Case& one : cases) expect_plain_training(one);
}

// The norm counts an adapter's whole matrix once, on whichever ranks it is.
TEST(MeshMatrix, AdaptersTrainAsThoseOfThePlainModel) {
  expect_plain_training({.tensor = 2, .adapters = true});
  expect_plain_training({.tensor = 4, .sequence = true, .llama = true, .adapters = true});
  expect_plain_training({.pipeline = 2,
                         .tensor = 2,
                         .schedule = "1f1b",
                         .recomputed = Recomputed::Blocks,
                         .sequence = true,
                         .adapters = true});
  expect_plain_training({.replicate = 2, .tensor = 2, .llama = true, .adapters = true});
  expect_plain_training(
      {.shard = 2, .tensor = 2, .level = ShardLevel::Parameters, .llama = true, .adapters = true});
}

// ---- bf16 ----

Weights plain_gradients_in_bf16(const Case& given) {
  models::TransformerOptions options = options_of(given);
  options.type = at::kBFloat16;
  const nn::Layers net = models::transformer(config_of(given), options);
  const at::Tensor ids = ids_of(0);
  const at::Tensor scores = nn::run(net.graph(), {ids.narrow(1, 0, tokens)}, {.seed = 5}).at(0);
  at::cross_entropy_loss(scores.flatten(0, 1), ids.narrow(1, 1, tokens).flatten()).backward();
  Weights gradients;
  for (const auto& [name, tensor] : net.named_parameters()) gradients[name] = tensor.grad();
  return gradients;
}

// Sums of squares over all ranks' slices. A tensor that several ranks hold counts several times in
// each of them.
struct FrobeniusError {
  double difference = 0, shifted = 0, size = 0;

  void add(const at::Tensor& a, const at::Tensor& b) {
    const auto square = [](const at::Tensor& x) { return x.square().sum().item<double>(); };
    const at::Tensor exact = b.to(at::kDouble);
    difference += square(a.to(at::kDouble) - exact);
    shifted += square(exact.roll(1, 0) - exact);
    size += square(exact);
  }
};

std::map<std::string, FrobeniusError> errors_in_bf16(const Case& given, const Weights& plain) {
  std::map<std::string, FrobeniusError> errors;
  std::mutex mutex;
  spawn(given.ranks(), [&](World& world) {
    const DeviceMesh mesh = mesh_of(given, world);
    Parallel parallel = parallel_of(given, mesh, at::kBFloat16);
    const at::Tensor ids = share_of(ids_of(0), parallel);
    parallel.step(ids.narrow(1, 0, tokens), ids.narrow(1, 1, tokens), nn::token_cross_entropy());
    const nn::ParameterSlices slices = parallel.rank_slices().parameters;
    const std::scoped_lock lock(mutex);
    for (const auto& [name, tensor] : parallel.named_parameters()) {
      const auto slice = slices.find(name);
      const at::Tensor& all = plain.at(name);
      errors[name].add(tensor.grad(), slice == slices.end() ? all : slice_of(all, slice->second));
    }
  });
  return errors;
}

// Megatron-LM's test_optimizer_states_match: layer l of L blocks may differ by k C^(L + 1 - l) eps
// of the Frobenius norm, with k = 4 and C = 1.03. The embedding is layer 0, the head L + 1.
TEST(MeshMatrix, GradientsInBf16AreWithinMegatronsBound) {
  const std::vector<Case> layouts = {
      {.tensor = 2},
      {.tensor = 4, .sequence = true},
      {.pipeline = 2, .tensor = 2, .schedule = "1f1b"},
      {.replicate = 2, .tensor = 2, .recomputed = Recomputed::Blocks, .llama = true},
      {.pipeline = 4, .llama = true}};
  for (const Case& given : layouts) {
    SCOPED_TRACE(given.name());
    const Weights plain = plain_gradients_in_bf16(given);
    const auto errors = errors_in_bf16(given, plain);
    EXPECT_EQ(errors.size(), plain.size());
    const std::int64_t blocks = config_of(given).layers;
    for (const auto& [name, error] : errors) {
      const std::int64_t layer = name.starts_with("embed.")    ? 0
                                 : name.starts_with("blocks.") ? 1 + (name.at(7) - '0')
                                                               : blocks + 1;
      constexpr double eps = 0x1p-7;
      const double bound = 4 * std::pow(1.03, double(blocks + 1 - layer)) * eps;
      EXPECT_LE(std::sqrt(error.difference / error.size), bound)
          << name << ", of a shifted copy " << std::sqrt(error.shifted / error.size);
    }
  }
}

// All of them: TRESTLE_WHOLE_MATRIX=1 tensor_parallel_test --gtest_filter='MeshMatrix.*'
TEST(MeshMatrix, SmallMeshesTrainAsThePlainModel) {
  if (std::getenv("TRESTLE_WHOLE_MATRIX") != nullptr) {
    for (const Case& one : all_cases()) {
      expect_plain_training(one);
      std::cout << one.name() << (HasFailure() ? " failed" : " passed") << std::endl;
    }
    return;
  }
  expect_plain_training({.tensor = 2});
  expect_plain_training({.tensor = 4, .sequence = true, .llama = true});
  expect_plain_training({.pipeline = 2, .tensor = 2, .schedule = "1f1b", .sequence = true});
  // W computes the weights' products of split layers, without their messages.
  expect_plain_training({.pipeline = 2, .tensor = 2, .schedule = "zb_h1", .sequence = true});
  expect_plain_training({.pipeline = 2,
                         .tensor = 2,
                         .schedule = "zb_h1",
                         .recomputed = Recomputed::Blocks,
                         .llama = true});
  expect_plain_training({.replicate = 2, .tensor = 2, .llama = true});
  expect_plain_training({.shard = 2, .tensor = 2, .level = ShardLevel::Parameters});
}

}  // namespace
}  // namespace trestle::testing
