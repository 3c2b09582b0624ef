// Formulas of a transformer's memory and messages. tests/tensor_parallel measures the blocks.
#include "trestle/plan/transformer_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/plan/transformer_traffic.h"

namespace trestle::plan {
namespace {

using testing::HasSubstr;
using Form = PublishedForm;

// A row of Korthikanti et al. 2022, table 3, with 8 tensor ranks and 2048 tokens.
struct PublishedModel {
  std::string name;
  double heads, width, layers, stages, chunks, batch;
  double states, tensor, selective;  // GiB of the first stage
};

const std::vector<PublishedModel>& published_models() {
  static const std::vector<PublishedModel> models = {
      {"22B", 64, 6144, 48, 1, 1, 4, 45.5625, 59.25, 9.5625},
      {"175B", 96, 12288, 96, 8, 3, 1, 45.5625, 66.84375, 12.3515625},
      {"530B", 128, 20480, 105, 35, 3, 1, 31.640625, 114.0234375, 23.076171875},
      {"1T", 160, 25600, 128, 64, 1, 1, 32.958984375, 131.25, 26.5625}};
  return models;
}

PublishedSizes sizes_of(const PublishedModel& model) {
  return {.tokens = 2048,
          .batch = model.batch,
          .width = model.width,
          .heads = model.heads,
          .tensor = 8};
}

constexpr double gib = 1024.0 * 1024 * 1024;

TEST(PublishedMemory, FormulasAreTranscribedToTheDigitOfThePublishedGiB) {
  for (const PublishedModel& model : published_models()) {
    const PublishedSizes sizes = sizes_of(model);
    const PublishedPipeline pipeline{model.layers, model.stages, model.chunks};
    EXPECT_EQ(published_state_bytes(sizes, pipeline) / gib, model.states) << model.name;
    // In double, 1 + (p - 1) / (p v) is not exact for v = 3.
    EXPECT_DOUBLE_EQ(published_first_stage_bytes(Form::Tensor, sizes, pipeline) / gib, model.tensor)
        << model.name;
    EXPECT_DOUBLE_EQ(
        published_first_stage_bytes(Form::TensorSequenceSelective, sizes, pipeline) / gib,
        model.selective)
        << model.name;
  }
}

// The percentages of the tensor form at t = 8: sequence, selective, both, whole.
TEST(PublishedMemory, FormulasAreTranscribedToTheDigitOfThePublishedPercentages) {
  const std::vector<std::vector<double>> percents = {
      {66.8, 49.4, 16.1, 7.6}, {62.0, 56.5, 18.5, 8.7}, {58.3, 61.9, 20.2, 9.5}};
  const std::vector<Form> forms = {Form::TensorSequence, Form::TensorSelective,
                                   Form::TensorSequenceSelective, Form::Whole};
  for (std::size_t i = 0; i < 4; ++i) {
    const PublishedSizes sizes = sizes_of(published_models()[i]);
    const double all = published_activation_bytes(Form::Tensor, sizes);
    for (std::size_t form = 0; form < forms.size(); ++form)
      EXPECT_NEAR(100 * published_activation_bytes(forms[form], sizes) / all,
                  percents[std::min<std::size_t>(i, 2)][form], 0.05)
          << published_models()[i].name;
  }
}

BlockSizes gpt() {
  return {.batch = 2,
          .tokens = 256,
          .width = 128,
          .heads = 8,
          .kv_heads = 8,
          .head_size = 16,
          .mlp = 512};
}

// Beside the published ones: two statistics of two norms, 2 bytes each, of the own tokens.
TEST(BlockMemory, EqualsThePublishedFormulasAndTheNormsStatistics) {
  for (const int tensor : {1, 2, 4}) {
    const double s = 256, b = 2;
    const PublishedSizes published{s, b, 128, 8, static_cast<double>(tensor)};
    BlockSettings settings{.core = BlockSettings::Core::Written,
                           .residual_dropout = true,
                           .attention_dropout = true,
                           .tensor = tensor};
    const auto expect = [&](Form form, double statistics) {
      EXPECT_EQ(static_cast<double>(total_of(kept_by_block(gpt(), settings))),
                published_activation_bytes(form, published) + statistics)
          << tensor;
    };
    expect(Form::Tensor, 8 * s * b);
    settings.recompute = BlockSettings::Recompute::Attention;
    expect(Form::TensorSelective, 8 * s * b);
    settings.recompute = BlockSettings::Recompute::Block;
    expect(Form::Whole, 0);
    settings.split_input = true;
    expect(Form::WholeSplit, 0);
    settings.split_input = false;
    settings.sequence = true;
    settings.recompute = BlockSettings::Recompute::Nothing;
    expect(Form::TensorSequence, 8 * s * b / tensor);
    settings.recompute = BlockSettings::Recompute::Attention;
    expect(Form::TensorSequenceSelective, 8 * s * b / tensor);
  }
}

TEST(BlockMemory, StatesAreThoseOfTwelveSquaredWidthsAndBiases) {
  const BlockParameters whole = parameters_of_block(gpt(), 1);
  EXPECT_EQ(whole.matrices, 12 * 128 * 128);
  EXPECT_EQ(whole.total(), 12 * 128 * 128 + 13 * 128);
  EXPECT_EQ(state_bytes(whole, 3), 3 * 16 * whole.total());
  EXPECT_EQ(state_bytes(whole, 1, {.weight = 2, .gradient = 4, .optimizer = 12}),
            18 * whole.total());
  EXPECT_EQ(parameters_of_block(gpt(), 4).matrices, whole.matrices / 4);
}

TEST(BlockMemory, RefusesSizesThatAreNone) {
  const auto refusal = [](const BlockSizes& sizes, const BlockSettings& settings) -> std::string {
    try {
      kept_by_block(sizes, settings);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(refusal({.mlp = 0}, {}), HasSubstr("mlp = 0"));
  EXPECT_THAT(refusal(gpt(), {.tensor = 3}), HasSubstr("8 heads"));
  EXPECT_THAT(refusal(gpt(), {.tensor = 16}), HasSubstr("over 16 tensor ranks"));
}

// With S = 2 b s h: TP 2 all-reduces forward and 2 backward, 2 more if recomputed; TP+SP the same
// bytes as 4 all-gathers and 4 reduce-scatters, and 2 all-gathers.
TEST(BlockTraffic, FormulasAreTranscribedFromThePublishedRows) {
  const Bytes s = 2 * 2 * 256 * 128;
  const StepTraffic whole = traffic_of_block(gpt(), {.tensor = 4});
  EXPECT_EQ(whole.forward, (Traffic{.all_reduce = {2, 2 * s}}));
  EXPECT_EQ(whole.backward, (Traffic{.all_reduce = {2, 2 * s}}));
  EXPECT_EQ(
      traffic_of_block(gpt(), {.recompute = BlockSettings::Recompute::Block, .tensor = 4}).backward,
      (Traffic{.all_reduce = {4, 4 * s}}));
  const StepTraffic shards = traffic_of_block(gpt(), {.tensor = 4, .sequence = true});
  EXPECT_EQ(shards.sum().all_gather, (MessageCount{6, 6 * s}));
  EXPECT_EQ(shards.sum().reduce_scatter, (MessageCount{4, 4 * s}));
  EXPECT_EQ(shards.sum().all_reduce, (MessageCount{2, 2 * 2 * 128 * 2}));
  EXPECT_EQ(traffic_of_block(gpt(), {}).sum(), Traffic());
  // An all-reduce sends what a gather and a reduce-scatter send: 3 / 4 of S each.
  EXPECT_EQ(whole.sum().sent(4), 4 * 2 * 0.75 * static_cast<double>(s));
}

TEST(VocabularyTraffic, FormulasAreTranscribedFromThePublishedRow) {
  const Bytes bsh = 2 * 2 * 256 * 128, bs4 = 4 * 2 * 256;
  const StepTraffic step = traffic_of_vocabulary(gpt(), {.tensor = 4}, {.rows = 1000});
  EXPECT_EQ(step.forward, (Traffic{.all_reduce = {3, bsh + 3 * bs4}}));
  EXPECT_EQ(step.backward, (Traffic{.all_reduce = {1, bsh}}));
}

}  // namespace
}  // namespace trestle::plan
