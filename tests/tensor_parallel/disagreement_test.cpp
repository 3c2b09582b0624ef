// Tensor ranks that were given different models, plans or batches: refused before the first wrong
// number, on all of them, with the first difference.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "tests/models/tiny_transformers.h"
#include "tests/support/message_of.h"
#include "tests/tensor_parallel/checks.h"
#include "trestle/base/text.h"
#include "trestle/comm/rank_error.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/token_loss.h"
#include "trestle/parallel/parallelize.h"

namespace trestle::testing {
namespace {

using models::TransformerConfig;
using models::TransformerOptions;
using tensor_parallel::TensorRanks;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The messages are those of all ranks.
void expect_refused(const std::string& words, const std::function<void(World&)>& call,
                    int ranks = 2) {
  spawn(ranks, [&](World& world) {
    EXPECT_THAT(refusal_of([&] { call(world); }), HasSubstr(words)) << "rank " << world.rank();
  });
}

TEST(Disagreement, EveryFactOfTwoTransformersIsComparedWhenTheyAreMade) {
  using Change = std::function<void(TransformerConfig&, TransformerOptions&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"'heads 4' on tensor rank 0, 'heads 2' on tensor rank 1",
       [](auto& config, auto&) {
         config.heads = config.kv_heads = 2;  // with the same shapes
         config.head_size = 8;
       }},
      {"'seed 42' on tensor rank 0, 'seed 43' on", [](auto&, auto& options) { options.seed = 43; }},
      {"'type Float' on tensor rank 0, 'type BFloat16' on",
       [](auto&, auto& options) { options.type = at::kBFloat16; }},
      {"'sequence parallel no' on tensor rank 0, 'sequence parallel yes' on",
       [](auto&, auto& options) { options.tensor.sequence = true; }},
      {"'dropout of residuals 0' on tensor rank 0, 'dropout of residuals 0.1' on",
       [](auto& config, auto&) { config.dropout.residual = 0.1; }},
      {"'norm_epsilon 1e-05' on tensor rank 0, 'norm_epsilon 0.1' on",
       [](auto& config, auto&) { config.norm_epsilon = 0.1; }},
      {"'layers 2' on tensor rank 0, 'layers 3' on",
       [](auto& config, auto&) { config.layers = 3; }},
      {"'vocabulary_multiple 1' on tensor rank 0, 'vocabulary_multiple 8' on",
       [](auto& config, auto&) { config.vocabulary_multiple = 8; }},
      {"'scores joined' on tensor rank 0, 'scores own rows' on",
       [](auto&, auto& options) { options.scores = models::SplitScores::Own; }},
      {"'no adapters' on tensor rank 0, 'adapters of rank 2, alpha 16, dropout 0, for c_attn' on",
       [](auto&, auto& options) { options.adapters = {.rank = 2, .targets = {"c_attn"}}; }},
      {"'frozen type 0' on tensor rank 0, 'frozen type 2' on",
       [](auto&, auto& options) { options.frozen_type = models::FrozenType::Int8; }}};
  for (const auto& [words, change] : changes)
    expect_refused("the tensor ranks make different transformers: " + words, [&](World& world) {
      TransformerConfig config = models::tiny_gpt2();
      TransformerOptions options;
      options.tensor.ranks = TensorRanks(world.group());
      if (world.rank() == 1) change(config, options);
      models::transformer(config, options);
    });
}

// One pipeline for each tensor rank: a pipeline's own ranks agree.
void make_on_mesh(World& world, int stages,
                  const std::function<void(int, ParallelOptions&)>& change,
                  const std::function<void(int, nn::Layers&)>& change_net = {}) {
  const DeviceMesh mesh(world, {{"pipeline", stages}, {"tensor", 2}});
  const TensorRanks ranks(mesh);
  nn::Layers net = models::transformer(models::tiny_gpt2(), {.tensor = {.ranks = ranks}});
  if (change_net) change_net(ranks.rank(), net);
  ParallelOptions options{.tensor_ranks = ranks};
  options.options.micro_batches = 4;
  if (stages == 2) options.options.balance = {2, 3};
  change(ranks.rank(), options);
  Parallel(net, mesh, options);
}

TEST(Disagreement, PlansOfTensorRanksAreComparedByParallelize) {
  using Change = std::function<void(PipelineOptions&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"'micro_batches 4' on tensor rank 0, 'micro_batches 2' on tensor rank 1",
       [](auto& options) { options.micro_batches = 2; }},
      {"'schedule gpipe' on tensor rank 0, 'schedule 1f1b' on tensor rank 1",
       [](auto& options) { options.schedule = "1f1b"; }},
      {"'seed 0' on tensor rank 0, 'seed 7' on tensor rank 1",
       [](auto& options) { options.numerics.seed = 7; }},
      {"'recompute never' on tensor rank 0, 'recompute always' on tensor rank 1",
       [](auto& options) { options.recompute = Recompute::Always; }}};
  for (const int stages : {1, 2})
    for (const auto& [words, change] : changes)
      expect_refused(
          "the tensor ranks split different models: " + words,
          [&](World& world) {
            make_on_mesh(world, stages, [&](int rank, ParallelOptions& options) {
              if (rank == 1) change(options.options);
            });
          },
          2 * stages);
}

// The first stages hold other parameters, which come first.
TEST(Disagreement, BalanceIsComparedBetweenTensorRanks) {
  spawn(4, [&](World& world) {
    const std::string refused = refusal_of([&] {
      make_on_mesh(world, 2, [](int rank, ParallelOptions& options) {
        if (rank == 1) options.options.balance = {3, 2};
      });
    });
    EXPECT_THAT(refused, HasSubstr("the tensor ranks split different models: "));
    EXPECT_THAT(refused, HasSubstr("blocks.1."));
  });
}

TEST(Disagreement, FrozenParametersAreComparedByParallelize) {
  expect_refused(
      "'head.weight Float [40, 16] split along 0' on tensor rank 0, "
      "'head.weight Float [40, 16] split along 0 frozen' on tensor rank 1",
      [](World& world) {
        const TensorRanks ranks(world.group());
        const DeviceMesh mesh(world, {{"tensor", 2}});
        nn::Layers net = models::transformer(models::tiny_llama(), {.tensor = {.ranks = ranks}});
        for (const auto& [name, parameter] : net.named_parameters())
          if (ranks.rank() == 1 && name == "head.weight") parameter.set_requires_grad(false);
        Parallel(net, mesh, {.tensor_ranks = ranks});
      });
}

TEST(Disagreement, RanksOfAnotherMeshAreRefused) {
  expect_refused(
      "the mesh's ranks along 'tensor' are ",
      [](World& world) {
        const DeviceMesh mesh(world, {{"replicate", 2}, {"tensor", 2}});
        const DeviceMesh other(world, {{"tensor", 2}, {"replicate", 2}});
        const TensorRanks ranks(other);
        Parallel(models::transformer(models::tiny_gpt2(), {.tensor = {.ranks = ranks}}), mesh,
                 {.tensor_ranks = ranks});
      },
      4);
}

// The layers are rank 0's on both ranks.
TEST(Disagreement, SlicesThatAreNotTheWholeParameterAreRefused) {
  expect_refused("on the 2 tensor ranks are not all of its", [](World& world) {
    const DeviceMesh mesh(world, {{"tensor", 2}});
    nn::Layers net = models::transformer(models::tiny_gpt2(),
                                         {.tensor = {.ranks = TensorRanks::on_paper(0, 2)}});
    Parallel(net, mesh, {.tensor_ranks = TensorRanks(mesh)});
  });
}

TEST(Disagreement, ModelsWithoutSlicesAreRefused) {
  for (const int stages : {1, 2})
    expect_refused(
        "no parameter of the model is split over the 2 tensor ranks",
        [&](World& world) {
          const DeviceMesh mesh(world, {{"pipeline", stages}, {"tensor", 2}});
          ParallelOptions options{.tensor_ranks = TensorRanks(mesh)};
          if (stages == 2) options.options.balance = {2, 3};
          Parallel(models::transformer(models::tiny_gpt2()), mesh, options);
        },
        2 * stages);
}

TEST(Disagreement, MeshAndTensorRanksNeedTheSameSize) {
  expect_refused(
      "the mesh has 2 ranks along 'tensor', and ParallelOptions::tensor_ranks are 1",
      [](World& world) {
        Parallel(models::transformer(models::tiny_gpt2()), DeviceMesh(world, {{"tensor", 2}}));
      });
  expect_refused("the mesh has 1 rank along 'tensor', and ParallelOptions::tensor_ranks are 2",
                 [](World& world) {
                   const TensorRanks ranks(world.group());
                   Parallel(models::transformer(models::tiny_gpt2(), {.tensor = {.ranks = ranks}}),
                            DeviceMesh(world, {{"replicate", 2}}), {.tensor_ranks = ranks});
                 });
}

TEST(Disagreement, MeshesLargerThanTheWorldAreRefused) {
  expect_refused("4", [](World& world) { DeviceMesh(world, {{"tensor", 4}}); });
}

at::Tensor ids_at(std::int64_t rows, std::int64_t tokens, std::int64_t first = 0) {
  return (torch::arange(rows * tokens) * 7 + first).remainder(40).view({rows, tokens});
}

// A batch of the same shape with other values gives wrong numbers without any other sign.
TEST(Disagreement, OtherBatchesAreRefusedInEveryCall) {
  struct Case {
    std::string words;
    at::Tensor ids, targets;
  };
  const std::vector<Case> cases = {
      {"'[4, 6] Long' on tensor rank 0, '[4, 5] Long' on tensor rank 1", ids_at(4, 5),
       ids_at(4, 5)},
      {"'[4, 6] Long' on tensor rank 0, '[3, 6] Long' on tensor rank 1", ids_at(3, 6),
       ids_at(3, 6)},
      {"values of [4, 6] Long with hash ", ids_at(4, 6, 1), ids_at(4, 6)},
      {"values of [4, 6] Long with hash ", ids_at(4, 6), ids_at(4, 6, 1)}};
  for (const int stages : {1, 2})
    for (const Case& other : cases)
      for (const bool step : {true, false}) {
        if (!step && at::equal(other.ids, ids_at(4, 6))) continue;
        SCOPED_TRACE(text(stages, " stages: ", other.words));
        // Ranks of other stages may be told by the failed world.
        spawn(2 * stages, [&](World& world) {
          const DeviceMesh mesh(world, {{"pipeline", stages}, {"tensor", 2}});
          const TensorRanks ranks(mesh);
          ParallelOptions options{.tensor_ranks = ranks};
          if (stages == 2) options.options.balance = {2, 3};
          Parallel parallel(models::transformer(models::tiny_gpt2(), {.tensor = {.ranks = ranks}}),
                            mesh, options);
          const bool is_other = ranks.rank() == 1;
          const at::Tensor ids = is_other ? other.ids : ids_at(4, 6);
          const at::Tensor targets = is_other ? other.targets : ids_at(4, 6);
          const std::string message = support::message_of([&] {
            step ? void(parallel.step(ids, targets, nn::token_cross_entropy()))
                 : void(parallel.evaluate(ids));
          });
          EXPECT_THAT(message, HasSubstr(other.words)) << "rank " << world.rank();
        });
      }
}

// Without a pipeline the first reduction of different shapes fails on all ranks.
TEST(Disagreement, ReductionsOfDifferentShapesNameTheLayerOnAllRanks) {
  spawn(2, [](World& world) {
    nn::Layers net =
        models::transformer(models::tiny_gpt2(), {.tensor = {.ranks = TensorRanks(world.group())}});
    const std::string message =
        support::message_of([&] { net.forward(ids_at(2, world.rank() == 0 ? 6 : 5)); });
    EXPECT_THAT(message, AllOf(HasSubstr("while the tensor ranks added up 'embed'"),
                               HasSubstr("[2, 6, 16]"), HasSubstr("[2, 5, 16]")))
        << "rank " << world.rank();
  });
}

// A rank in evaluation would leave its dropout out, and the sums would mix both.
TEST(Disagreement, ModesOfModulesAreCompared) {
  spawn(2, [](World& world) {
    const DeviceMesh mesh(world, {{"tensor", 2}});
    const tensor_parallel::TensorRanks ranks(mesh);
    Parallel parallel(models::transformer(models::tiny_gpt2(), {.tensor = {.ranks = ranks}}), mesh,
                      ParallelOptions{.tensor_ranks = ranks});
    if (world.rank() == 1) parallel.pipeline().eval();
    const at::Tensor ids = torch::arange(24).view({4, 6});
    try {
      parallel.step(ids, ids, nn::token_cross_entropy());
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("modules in training 0"));
    }
  });
}

}  // namespace
}  // namespace trestle::testing
