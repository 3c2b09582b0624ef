#include "trestle/train/levels/levels.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "tests/view/xml_check.h"
#include "trestle/base/error.h"
#include "trestle/models/transformer/transformer.h"

namespace trestle::train {
namespace {

constexpr int blocks = 8, width = 128;
constexpr std::int64_t parameter_count = blocks * (width * width + width);

nn::Layers make_net() {
  nn::Layers net(nn::Seed{1});
  for (int i = 0; i < blocks; ++i)
    net.add("linear" + std::to_string(i), [] { return torch::nn::Linear(width, width); });
  return net;
}

const LevelRow& row_of(const std::vector<LevelRow>& rows, const std::string& name) {
  for (const LevelRow& row : rows)
    if (row.name == name) return row;
  throw std::out_of_range(name);
}

// The table of docs/sharding.md, with the bytes that a ring sends.
TEST(Levels, FormulasEqualManual) {
  const auto rows = levels_on_paper(1'000'000, {.ranks = 4});
  const auto expect = [&](const std::string& name, double bytes, double moved) {
    EXPECT_DOUBLE_EQ(row_of(rows, name).formula.rest, bytes * 1e6) << name;
    EXPECT_DOUBLE_EQ(row_of(rows, name).formula.moved, moved * 4e6) << name;
  };
  expect("plain", 16, 0);
  expect("DDP", 16, 2 * 0.75);
  expect("ZeRO-1", 10, 2 * 0.75);
  expect("ZeRO-2", 7, 2 * 0.75);
  expect("ZeRO-3, FSDP", 4, 3 * 0.75);
  expect("HSDP 2 x 2", 8, 3 * 0.5 + 2 * 0.5 * 0.5);
  EXPECT_EQ(row_of(rows, "ZeRO-1").per_parameter, "8 + 8/N");
  EXPECT_EQ(levels_on_paper(100, {.ranks = 3}).size(), 5u);  // no mesh of two rows
  const auto sgd = levels_on_paper(100, {.optimizer = {.name = "sgd"}});
  EXPECT_DOUBLE_EQ(row_of(sgd, "ZeRO-1").formula.rest, 800);
}

// Measured bytes equal the formula within 5 percent, counted ones exactly (no padding here).
TEST(Levels, MeasurementsEqualFormulas) {
  const LevelsOptions options{.ranks = 4, .steps = 1, .batch = 4};
  int reported = 0;
  const auto rows =
      measure_levels(make_net, {width}, options, [&](const LevelRow&) { ++reported; });
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(reported, 6);
  for (const LevelRow& row : rows) {
    EXPECT_NEAR(static_cast<double>(row.measured.rest) / row.formula.rest, 1, 0.05) << row.name;
    EXPECT_GE(row.measured.peak, row.measured.rest) << row.name;
    EXPECT_DOUBLE_EQ(row.measured.moved, row.formula.moved) << row.name;
    EXPECT_GT(row.measured.seconds, 0) << row.name;
  }
  // Each level's peak is lower than the previous one's.
  for (std::size_t i = 2; i < 5; ++i)
    EXPECT_LT(rows[i].measured.peak, rows[i - 1].measured.peak) << rows[i].name;
  const auto json = nlohmann::json::parse(levels_json(rows, {.trained = parameter_count}));
  EXPECT_EQ(json["parameters"], parameter_count);
  EXPECT_EQ(json["levels"][4]["shard"], 4);
  EXPECT_EQ(json["levels"][1]["moved_bytes"], json["levels"][1]["formula_moved_bytes"]);
  const auto picture = view::parse_xml(view::to_svg_bars(levels_picture(rows, "a net")));
  EXPECT_EQ(view::find_all(picture, "rect", "bar").size(), 18u);
  EXPECT_EQ(view::find_all(picture, "path", "mark").size(), 6u + 5u);
}

// 1,000 trained parameters, and 6,000 bytes of frozen ones, 2,000 of them before all trained ones.
TEST(Levels, CountFrozenWeightsWithoutGradientsAndState) {
  const LevelsWeights weights{
      .trained = 1000, .frozen = 3000, .frozen_bytes = 6000, .frozen_first_bytes = 2000};
  const auto rows = levels_on_paper(weights, {.ranks = 4});
  const auto expect = [&](const std::string& name, double bytes, double moved) {
    EXPECT_DOUBLE_EQ(row_of(rows, name).formula.rest, bytes) << name;
    EXPECT_DOUBLE_EQ(row_of(rows, name).formula.moved, moved) << name;
  };
  expect("plain", 16'000 + 6'000, 0);
  expect("DDP", 16'000 + 6'000, 2 * 0.75 * 4'000);
  expect("ZeRO-1", 10'000 + 6'000, 2 * 0.75 * 4'000);
  expect("ZeRO-2", 7'000 + 6'000, 2 * 0.75 * 4'000);
  expect("ZeRO-3, FSDP", 4'000 + 1'500, 3 * 0.75 * 4'000 + 0.75 * (6'000 + 4'000));
  expect("HSDP 2 x 2", 8'000 + 3'000, (3 * 0.5 + 0.5) * 4'000 + 0.5 * (6'000 + 4'000));
  EXPECT_THROW(levels_on_paper({.trained = 0, .frozen = 5, .frozen_bytes = 20}, {}), UsageError);
}

// Llama with 2 blocks of width 64, 4 heads of 16 with 2 of keys and values, and adapters of rank 4.
// All sizes are multiples of what the shards of 4 ranks are padded to.
nn::Layers adapted_llama(models::FrozenType type) {
  return models::transformer(
      {.style = models::TransformerConfig::Style::Llama,
       .vocabulary = 64,
       .context = 16,
       .width = 64,
       .layers = 2,
       .heads = 4,
       .kv_heads = 2,
       .head_size = 16,
       .mlp = 128,
       .activation = models::TransformerConfig::Activation::Silu,
       .tied_head = false,
       .qkv_bias = false,
       .out_bias = false,
       .mlp_bias = false},
      {.adapters = {.rank = 4, .targets = {"q_proj", "v_proj"}}, .frozen_type = type});
}

// Adapters: of the queries [4, 64] and [64, 4], of the values [4, 64] and [32, 4]. Frozen matrices
// of a block: queries, keys and values [128, 64], output [64, 64], gate and up [256, 64], down
// [64, 128]. Vectors: two norms of a block, and the last.
TEST(Levels, CountAdaptersAndFrozenWeightsOfLlama) {
  constexpr std::int64_t adapters = 2 * (4 * 64 + 64 * 4 + 4 * 64 + 32 * 4);
  constexpr std::int64_t table = 64 * 64;
  constexpr std::int64_t matrices = 2 * (128 * 64 + 64 * 64 + 256 * 64 + 64 * 128);
  constexpr std::int64_t vectors = 2 * 2 * 64 + 64;
  const LevelsWeights fp32 = weights_of(adapted_llama(models::FrozenType::Float32));
  EXPECT_EQ(fp32.trained, adapters);
  EXPECT_EQ(fp32.frozen, 2 * table + matrices + vectors);
  EXPECT_EQ(fp32.frozen_bytes, 4 * fp32.frozen);
  EXPECT_EQ(fp32.frozen_first_bytes, 4 * table);
  const LevelsWeights bf16 = weights_of(adapted_llama(models::FrozenType::BFloat16));
  EXPECT_EQ(bf16.trained, adapters);
  EXPECT_EQ(bf16.frozen_bytes, 2 * (2 * table + matrices) + 4 * vectors);
  EXPECT_EQ(bf16.frozen_first_bytes, 2 * table);
  // An fp32 scale for each row of a block's matrices.
  constexpr std::int64_t rows = 2 * (128 + 64 + 256 + 64);
  const LevelsWeights int8 = weights_of(adapted_llama(models::FrozenType::Int8));
  EXPECT_EQ(int8.trained, adapters);
  EXPECT_EQ(int8.frozen_bytes, matrices + 4 * rows + 2 * 2 * table + 4 * vectors);
  EXPECT_EQ(int8.frozen_first_bytes, 2 * table);
}

TEST(Levels, MeasureAdaptersBesideFrozenWeights) {
  for (const auto type :
       {models::FrozenType::Float32, models::FrozenType::BFloat16, models::FrozenType::Int8}) {
    const auto rows = measure_levels([type] { return adapted_llama(type); }, {16},
                                     {.ranks = 4, .steps = 1, .batch = 4, .ids = 64});
    ASSERT_EQ(rows.size(), 6u);
    for (const LevelRow& row : rows) {
      EXPECT_NEAR(static_cast<double>(row.measured.rest) / row.formula.rest, 1, 0.05) << row.name;
      EXPECT_DOUBLE_EQ(row.measured.moved, row.formula.moved) << row.name;
    }
  }
}

// The table of GPT-2 is weight, gradient and state once, though embedding and head use it.
TEST(Levels, CountTiedWeightsOnce) {
  const auto make = [] {
    return models::transformer({.vocabulary = 512,
                                .context = 16,
                                .width = 32,
                                .layers = 1,
                                .heads = 2,
                                .kv_heads = 2,
                                .head_size = 16,
                                .mlp = 128});
  };
  const LevelsWeights weights = weights_of(make());
  EXPECT_EQ(weights.trained, 512 * 32 + 16 * 32 + 12 * 32 * 32 + 13 * 32 + 2 * 32);
  EXPECT_EQ(weights.frozen, 0);
  const auto rows = measure_levels(make, {16}, {.ranks = 2, .steps = 1, .batch = 2, .ids = 512});
  for (const LevelRow& row : rows)
    EXPECT_NEAR(static_cast<double>(row.measured.rest) / row.formula.rest, 1, 0.05) << row.name;
}

// Shares of 3, 3 and 2 samples, weighted by their sizes.
TEST(Levels, AllowUnevenSharesOfBatch) {
  const auto rows = measure_levels(make_net, {width}, {.ranks = 3, .steps = 1, .batch = 8});
  EXPECT_EQ(rows.size(), 5u);
  for (const LevelRow& row : rows) EXPECT_GT(row.measured.rest, 0) << row.name;
}

struct WideBlockImpl : torch::nn::Module {
  WideBlockImpl() {
    in = register_module("in", torch::nn::Linear(32, 256));
    out = register_module("out", torch::nn::Linear(256, 32));
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::tanh(in(x))); }
  torch::nn::Linear in{nullptr}, out{nullptr};
};

// Activations inside the blocks are most of each peak.
TEST(Levels, RecomputeLayersOrSegments) {
  const auto peaks = [](LevelsOptions options) {
    options.ranks = 2, options.steps = 1, options.batch = 2048;
    std::vector<Bytes> found;
    const auto make = [] {
      nn::Layers net(nn::Seed{1});
      for (int i = 0; i < 12; ++i)
        net.add("block" + std::to_string(i), [] { return std::make_shared<WideBlockImpl>(); });
      return net;
    };
    for (const LevelRow& row : measure_levels(make, {32}, options))
      found.push_back(row.measured.peak);
    return found;
  };
  const auto kept = peaks({}), segments = peaks({.checkpoint_segments = 4}),
             layers = peaks({.checkpoint = {"layers"}}),
             some = peaks({.checkpoint = {"block3", "block4"}});
  for (std::size_t row = 0; row < kept.size(); ++row) {
    EXPECT_LT(segments[row], 3 * kept[row] / 4) << row;
    EXPECT_LT(layers[row], kept[row] / 2) << row;
    EXPECT_LT(some[row], kept[row]) << row;
  }
  EXPECT_THROW(peaks({.checkpoint = {"blok3"}}), UsageError);
}

TEST(Levels, RefuseInvalidNumbers) {
  EXPECT_THROW(levels_on_paper(1, {.ranks = 1}), UsageError);
  EXPECT_THROW(levels_on_paper(1, {.ranks = 4, .replicate = 3}), UsageError);
  EXPECT_THROW(levels_on_paper(1, {.ranks = 4, .batch = 3}), UsageError);
  EXPECT_THROW(levels_on_paper(1, {.steps = 0}), UsageError);
  EXPECT_THROW(levels_on_paper(1, {.optimizer = {.name = "adamv"}}), UsageError);
  EXPECT_THROW(levels_on_paper(1, {.checkpoint = {"layers"}, .checkpoint_segments = 2}),
               UsageError);
}

}  // namespace
}  // namespace trestle::train
