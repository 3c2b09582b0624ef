// The messages of tensor ranks in a run, against the formulas of plan/transformer_traffic.h.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "tests/models/tiny_transformers.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/parallel/checkpoint_layers.h"
#include "trestle/plan/transformer_traffic.h"
#include "trestle/tensor_parallel/vocabulary_cross_entropy.h"

namespace trestle::tensor_parallel {
namespace {

using models::TransformerConfig;
using plan::BlockSettings;
using plan::StepTraffic;

struct SplitModel {
  TransformerConfig config;
  BlockSettings settings;
  std::int64_t rows = 2, tokens = 12;
};

plan::BlockSizes sizes_of(const SplitModel& model) {
  return {.style = model.config.style == TransformerConfig::Style::Llama
                       ? plan::BlockSizes::Style::Llama
                       : plan::BlockSizes::Style::Gpt2,
          .batch = model.rows,
          .tokens = model.tokens,
          .width = model.config.width,
          .heads = model.config.heads,
          .kv_heads = model.config.kv_heads,
          .head_size = model.config.head_size,
          .mlp = model.config.mlp};
}

StepTraffic expected(const SplitModel& model) {
  StepTraffic step = plan::traffic_of_vocabulary(sizes_of(model), model.settings,
                                                 {.rows = models::table_rows(model.config)});
  for (std::int64_t layer = 0; layer < model.config.layers; ++layer) {
    const StepTraffic block = plan::traffic_of_block(sizes_of(model), model.settings);
    step.forward += block.forward;
    step.backward += block.backward;
  }
  return step;
}

StepTraffic counted(const SplitModel& model, const TensorRanks& ranks) {
  const bool narrow = model.settings.numbers == BlockSettings::Numbers::BFloat16;
  const nn::Layers net = models::transformer(
      model.config, {.type = narrow ? at::kBFloat16 : at::kFloat,
                     .tensor = {.ranks = ranks, .sequence = model.settings.sequence},
                     .scores = models::SplitScores::Own});
  nn::Graph graph = net.graph();
  if (model.settings.recompute == BlockSettings::Recompute::Block)
    checkpoint_layers(
        {"blocks"}, {.split_arguments = model.settings.split_input ? ranks : TensorRanks()})(graph);
  const at::Tensor ids =
      torch::arange(model.rows * model.tokens).remainder(40).view({model.rows, -1});
  const nn::Loss loss =
      vocabulary_cross_entropy({ranks, model.config.vocabulary, models::table_rows(model.config)});
  const Traffic before = ranks.traffic();
  const at::Tensor value = loss.value(nn::run(graph, {ids})[0], ids.roll(-1, 1));
  const Traffic forward = ranks.traffic() - before;
  value.backward();
  return {.forward = forward, .backward = ranks.traffic() - before - forward};
}

std::string words(const Traffic& traffic) {
  const auto of = [](const char* name, const MessageCount& count) {
    return text(" ", name, " ", count.calls, " calls, ", count.bytes, " bytes;");
  };
  return of("all-reduce", traffic.all_reduce) + of("all-gather", traffic.all_gather) +
         of("reduce-scatter", traffic.reduce_scatter) + of("all-to-all", traffic.all_to_all);
}

void expect_formula(const SplitModel& model, const TensorRanks& ranks) {
  const StepTraffic should = expected(model), is = counted(model, ranks);
  EXPECT_EQ(is.forward, should.forward) << words(is.forward) << "\n" << words(should.forward);
  EXPECT_EQ(is.backward, should.backward) << words(is.backward) << "\n" << words(should.backward);
}

TEST(TensorTraffic, EqualsThePublishedRowsToTheByte) {
  for (const int size : {1, 2, 4})
    for (const bool sequence : {false, true})
      for (const bool bf16 : {false, true})
        for (const auto recompute :
             {BlockSettings::Recompute::Nothing, BlockSettings::Recompute::Block}) {
          const BlockSettings settings{
              .numbers = bf16 ? BlockSettings::Numbers::BFloat16 : BlockSettings::Numbers::Float32,
              .recompute = recompute,
              .tensor = size,
              .sequence = sequence && size > 1};
          SCOPED_TRACE(text(size, " ranks, sequence ", sequence, ", bf16 ", bf16));
          expect_formula({models::tiny_gpt2(), settings}, TensorRanks::on_paper(0, size));
          expect_formula({models::tiny_llama(), settings}, TensorRanks::on_paper(0, size));
        }
}

TEST(TensorTraffic, IsThatOnPaperForRanksThatExist) {
  for (const bool sequence : {false, true})
    spawn(4, [&](World& world) {
      const BlockSettings settings{
          .numbers = BlockSettings::Numbers::Float32, .tensor = 4, .sequence = sequence};
      expect_formula({models::tiny_gpt2(), settings}, TensorRanks(world.group()));
      // Two heads of keys and values for four ranks.
      expect_formula({models::tiny_llama(), settings}, TensorRanks(world.group()));
    });
}

TEST(TensorTraffic, GathersTheSharesOfRecomputedInputs) {
  for (const int size : {2, 4})
    for (const bool bf16 : {false, true}) {
      const BlockSettings settings{
          .numbers = bf16 ? BlockSettings::Numbers::BFloat16 : BlockSettings::Numbers::Float32,
          .recompute = BlockSettings::Recompute::Block,
          .tensor = size,
          .split_input = true};
      SCOPED_TRACE(text(size, " ranks, bf16 ", bf16));
      expect_formula({models::tiny_gpt2(), settings}, TensorRanks::on_paper(0, size));
      spawn(size, [&](World& world) {
        expect_formula({models::tiny_llama(), settings}, TensorRanks(world.group()));
      });
    }
}

// 11 tokens, an MLP of 37 and 43 rows of the vocabulary for 2 ranks: the shorter shards travel with
// a padded index.
TEST(TensorTraffic, CountsThePaddingOfUnevenShards) {
  SplitModel model{
      .config = models::tiny_gpt2(),
      .settings = {.numbers = BlockSettings::Numbers::Float32, .tensor = 2, .sequence = true},
      .tokens = 11};
  model.config.mlp = 37;
  model.config.vocabulary = 43;
  spawn(2, [&](World& world) { expect_formula(model, TensorRanks(world.group())); });
}

TEST(TensorTraffic, AnAloneScopeCountsNothingAndCopiesShareTheCount) {
  const TensorRanks ranks = TensorRanks::on_paper(0, 2);
  const SplitModel model{.config = models::tiny_gpt2(),
                         .settings = {.numbers = BlockSettings::Numbers::Float32, .tensor = 2}};
  {
    const TensorRanks::AloneScope alone(ranks);
    counted(model, ranks);
  }
  EXPECT_EQ(ranks.traffic(), Traffic());
  const StepTraffic step = counted(model, ranks.of("a copy"));
  EXPECT_EQ(ranks.traffic(), step.sum());
  EXPECT_GT(step.sum().sent(2), 0);
}

}  // namespace
}  // namespace trestle::tensor_parallel
