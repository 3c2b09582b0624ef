// The bytes that a block of a transformer keeps from forward to backward, on a virtual device's
// meter, against the formulas of plan/transformer_memory.h.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/support/virtual_environment.h"
#include "trestle/base/text.h"
#include "trestle/device/device.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/parallel/checkpoint_layers.h"
#include "trestle/plan/transformer_memory.h"
#include "trestle/precision/autocast.h"

namespace trestle::tensor_parallel {
namespace {

using models::AttentionCore;
using models::TransformerConfig;
using plan::BlockSettings;
using Core = BlockSettings::Core;
using Numbers = BlockSettings::Numbers;
using Recompute = BlockSettings::Recompute;

// The published formulas leave out the norms' statistics, which count less for wide models.
constexpr std::int64_t width = 128, heads = 4;

struct Batch {
  std::int64_t rows = 2, tokens = 64;
};

TransformerConfig gpt() {
  return {.vocabulary = 64,
          .context = 256,
          .width = width,
          .heads = heads,
          .kv_heads = heads,
          .head_size = 32,
          .mlp = 512};
}

TransformerConfig llama(std::int64_t kv_heads) {
  TransformerConfig config = gpt();
  config.style = TransformerConfig::Style::Llama;
  config.kv_heads = kv_heads;
  config.mlp = 344;
  config.activation = TransformerConfig::Activation::Silu;
  config.qkv_bias = config.out_bias = config.mlp_bias = config.tied_head = false;
  return config;
}

plan::BlockSizes sizes_of(const TransformerConfig& config, const Batch& batch) {
  return {.style = config.style == TransformerConfig::Style::Llama ? plan::BlockSizes::Style::Llama
                                                                   : plan::BlockSizes::Style::Gpt2,
          .batch = batch.rows,
          .tokens = batch.tokens,
          .width = config.width,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_size = config.head_size,
          .mlp = config.mlp};
}

// The bytes that a model keeps behind its forward.
Bytes kept_by_model(TransformerConfig config, std::int64_t layers, const BlockSettings& settings,
                    const Batch& batch) {
  const at::Device device("virtual:0");
  config.layers = layers;
  if (settings.residual_dropout) config.dropout.residual = config.dropout.embedding = 0.1;
  if (settings.attention_dropout) config.dropout.attention = 0.1;
  nn::Layers net = models::transformer(
      config,
      {.type = settings.numbers == Numbers::BFloat16 ? at::kBFloat16 : at::kFloat,
       .attention = settings.core == Core::Written ? AttentionCore::Written : AttentionCore::Fused,
       .tensor = {.ranks = TensorRanks::on_paper(0, settings.tensor),
                  .sequence = settings.sequence},
       .scores = models::SplitScores::Own,
       .recompute_attention = settings.recompute == Recompute::Attention});
  net.to(device);
  nn::Graph graph = net.graph();
  if (settings.recompute == Recompute::Block)
    checkpoint_layers({"blocks"}, {.split_arguments = settings.split_input ? TensorRanks::on_paper(
                                                                                 0, settings.tensor)
                                                                           : TensorRanks()})(graph);
  const at::Tensor ids =
      torch::arange(batch.rows * batch.tokens).remainder(64).view({batch.rows, batch.tokens});
  const nn::Values inputs = {ids.to(device)};
  const Bytes before = memory_usage(device).current;
  nn::Values scores;
  {
    std::optional<precision::Autocast> autocast;
    if (settings.numbers == Numbers::Autocast) autocast.emplace(Precision::BFloat16);
    scores = nn::run(graph, inputs, nn::RunKey{.seed = 1});
  }
  return memory_usage(device).current - before;
}

// The second block's share. The first block's input is the embedding's output.
Bytes kept_by_block(const TransformerConfig& config, const BlockSettings& settings,
                    const Batch& batch) {
  return kept_by_model(config, 2, settings, batch) - kept_by_model(config, 1, settings, batch);
}

std::string words_of(const std::vector<plan::KeptTensor>& kept) {
  std::string words;
  for (const plan::KeptTensor& one : kept) words += text("\n  ", one.name, ": ", one.bytes);
  return words;
}

// trestle's own formula has no tensor too few. The message says which it has.
void expect_own_formula(Bytes measured, const TransformerConfig& config,
                        const BlockSettings& settings, const Batch& batch) {
  const auto kept = plan::kept_by_block(sizes_of(config, batch), settings);
  const auto expected = static_cast<double>(plan::total_of(kept));
  EXPECT_NEAR(static_cast<double>(measured), expected, 0.005 * expected)
      << settings.tensor << " ranks, sequence " << settings.sequence << ", recompute "
      << static_cast<int>(settings.recompute) << words_of(kept);
}

void expect_own_formula(const TransformerConfig& config, const BlockSettings& settings,
                        const Batch& batch = {}) {
  expect_own_formula(kept_by_block(config, settings, batch), config, settings, batch);
}

BlockSettings published_settings(int tensor) {
  return {
      .core = Core::Written, .residual_dropout = true, .attention_dropout = true, .tensor = tensor};
}

TEST(BlockMemoryMeasured, GptInBf16KeepsThePublishedBytesWithin3Percent) {
  using Form = plan::PublishedForm;
  for (const int tensor : {1, 2, 4}) {
    const Batch batch{.rows = 2, .tokens = 256};
    const auto expect = [&](Form form, const BlockSettings& settings) {
      const double expected =
          plan::published_activation_bytes(form, {.tokens = static_cast<double>(batch.tokens),
                                                  .batch = static_cast<double>(batch.rows),
                                                  .width = width,
                                                  .heads = heads,
                                                  .tensor = static_cast<double>(tensor)});
      const Bytes measured = kept_by_block(gpt(), settings, batch);
      EXPECT_NEAR(static_cast<double>(measured), expected, 0.03 * expected)
          << "form " << static_cast<int>(form) << " on " << tensor << " ranks";
      expect_own_formula(measured, gpt(), settings, batch);
    };
    BlockSettings settings = published_settings(tensor);
    expect(tensor == 1 ? Form::Plain : Form::Tensor, settings);
    settings.recompute = Recompute::Attention;
    expect(Form::TensorSelective, settings);
    settings.recompute = Recompute::Block;
    expect(Form::Whole, settings);
    settings.split_input = true;
    expect(Form::WholeSplit, settings);
    settings.split_input = false;
    if (tensor == 1) continue;
    settings.sequence = true;
    settings.recompute = Recompute::Nothing;
    expect(Form::TensorSequence, settings);
    settings.recompute = Recompute::Attention;
    expect(Form::TensorSequenceSelective, settings);
  }
}

TEST(BlockMemoryMeasured, EveryCoreTypeAndModelKeepsItsFormula) {
  for (const TransformerConfig& config : {gpt(), llama(4), llama(2)})
    for (const Numbers numbers : {Numbers::Float32, Numbers::BFloat16, Numbers::Autocast})
      for (const Core core : {Core::Fused, Core::Written})
        for (const int tensor : {1, 2, 4})
          for (const Recompute recompute : {Recompute::Nothing, Recompute::Attention}) {
            if (recompute == Recompute::Attention && tensor > 1) continue;
            SCOPED_TRACE(text("kv_heads ", config.kv_heads, ", style ",
                              static_cast<int>(config.style), ", numbers ",
                              static_cast<int>(numbers), ", core ", static_cast<int>(core)));
            expect_own_formula(config, {.numbers = numbers,
                                        .core = core,
                                        .recompute = recompute,
                                        .residual_dropout = tensor != 2,
                                        .attention_dropout = core == Core::Written && tensor == 1,
                                        .tensor = tensor,
                                        .sequence = tensor == 4});
          }
}

TEST(BlockMemoryMeasured, AMicroBatchOfOneRowKeepsItsFormula) {
  for (const TransformerConfig& config : {gpt(), llama(4), llama(2), llama(1)})
    for (const Core core : {Core::Fused, Core::Written})
      expect_own_formula(config, {.core = core}, {.rows = 1});
}

}  // namespace
}  // namespace trestle::tensor_parallel
