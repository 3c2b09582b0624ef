#include "trestle/models/transformer/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>

#include "tests/models/tiny_transformers.h"
#include "trestle/base/counter_random.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/transformer/adapters.h"
#include "trestle/models/transformer/rotary.h"
#include "trestle/nn/loss.h"

namespace trestle::models {
namespace {

using testing::HasSubstr;
using Style = TransformerConfig::Style;

at::Tensor some_ids(std::int64_t rows, std::int64_t count, std::int64_t vocabulary) {
  return (torch::arange(rows * count) * 37 % vocabulary).view({rows, count});
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

class BothStyles : public testing::TestWithParam<TransformerConfig (*)()> {};

TEST_P(BothStyles, GivesScoresOfEachTokenFromTheTokensBeforeItAlone) {
  const TransformerConfig config = GetParam()();
  nn::Layers net = transformer(config);
  const at::Tensor ids = some_ids(2, 12, config.vocabulary);
  const at::Tensor scores = net.forward(ids);
  ASSERT_EQ(scores.sizes(), (std::vector<std::int64_t>{2, 12, config.vocabulary}));
  at::Tensor changed = ids.clone();
  changed.select(1, 7).fill_(1);
  const at::Tensor other = net.forward(changed);
  EXPECT_LT(largest_difference(scores.narrow(1, 0, 7), other.narrow(1, 0, 7)), 1e-6);
  EXPECT_GT(largest_difference(scores.narrow(1, 7, 5), other.narrow(1, 7, 5)), 1e-4);
}

// Three documents in one row, with padding at its end, equal the documents one by one.
TEST_P(BothStyles, PackedRowEqualsItsDocuments) {
  const TransformerConfig config = GetParam()();
  nn::Layers net = transformer(config);
  const at::Tensor ids = some_ids(1, 14, config.vocabulary);
  at::Tensor places = torch::full({1, 14}, -1);
  std::vector<std::pair<std::int64_t, std::int64_t>> documents = {{0, 5}, {5, 1}, {6, 6}};
  for (const auto& [first, count] : documents)
    places.narrow(1, first, count).copy_(torch::arange(count).unsqueeze(0));
  at::Tensor packed_loss = torch::zeros({}), single_loss = torch::zeros({});
  const auto target = [&](const at::Tensor& scores) { return scores.square().sum(); };
  const at::Tensor packed = net.forward(torch::stack({ids, places}, 2));
  for (const auto& [first, count] : documents) {
    const at::Tensor alone = net.forward(ids.narrow(1, first, count));
    EXPECT_LT(largest_difference(packed.narrow(1, first, count), alone), 2e-6);
    packed_loss = packed_loss + target(packed.narrow(1, first, count));
    single_loss = single_loss + target(alone);
  }
  const auto gradients = [&](const at::Tensor& loss) {
    return torch::autograd::grad({loss}, net.parameters());
  };
  const auto a = gradients(packed_loss), b = gradients(single_loss);
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_LT(largest_difference(a[i], b[i]), 1e-4 * (1 + b[i].abs().max().item<double>()));
}

TEST_P(BothStyles, WrittenCoreEqualsTheFusedOne) {
  const TransformerConfig config = GetParam()();
  const at::Tensor ids = some_ids(2, 9, config.vocabulary);
  nn::Layers fused = transformer(config);
  nn::Layers written = transformer(config, {.attention = AttentionCore::Written});
  EXPECT_LT(largest_difference(fused.forward(ids), written.forward(ids)), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(Transformer, BothStyles, testing::Values(tiny_gpt2, tiny_llama));

TEST(Transformer, TiedHeadIsTheEmbeddingsTable) {
  nn::Layers net = transformer(tiny_gpt2());
  std::vector<std::string> names;
  for (const auto& [name, tensor] : net.named_parameters()) names.push_back(name);
  EXPECT_EQ(std::count(names.begin(), names.end(), "embed.tokens"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "head.weight"), 0);
  // 40 x 16 + 16 x 16 + 2 blocks of (3 x 16 + 16 + 4 x 16 x 2) x 16 + biases and norms + 2 x 16
  EXPECT_EQ(net.parameter_count(), 640 + 256 + 2 * (12 * 256 + 48 + 16 + 64 + 16 + 64) + 32);
}

TEST(Transformer, WeightsAreDrawnByNameAndIndex) {
  nn::Layers net = transformer(tiny_gpt2(), {.seed = 7});
  for (const auto& [name, tensor] : net.named_parameters()) {
    if (name != "blocks.1.mlp.down.weight") continue;
    const CounterRandom random(7, name);
    const double deviation = 0.02 / std::sqrt(4.0);
    for (const std::int64_t i : {0, 5, 1023})
      EXPECT_FLOAT_EQ(tensor.flatten()[i].item<float>(),
                      static_cast<float>(deviation * random.normal(static_cast<std::uint64_t>(i))));
    EXPECT_NEAR(tensor.std().item<double>(), deviation, 0.1 * deviation);
    return;
  }
  FAIL() << "no such parameter";
}

// A model with adapters equals the model whose weights have their products added.
TEST_P(BothStyles, MergedAdaptersGiveTheSameScores) {
  const TransformerConfig config = GetParam()();
  const TransformerOptions options{
      .adapters = {.rank = 3, .alpha = 6, .targets = adapter_targets(config)}};
  nn::Layers net = transformer(config, options);
  const at::Tensor ids = some_ids(2, 9, config.vocabulary);
  const at::Tensor before = net.forward(ids);
  EXPECT_EQ(largest_difference(before, transformer(config).forward(ids)), 0);
  torch::manual_seed(1);
  std::int64_t adapters = 0;
  for (const auto& [name, tensor] : net.named_parameters()) {
    EXPECT_EQ(tensor.requires_grad(), name.find(".lora") != std::string::npos) << name;
    if (!name.ends_with(".b")) continue;
    torch::NoGradGuard no_grad;
    tensor.normal_(0, 0.3);
    ++adapters;
  }
  const at::Tensor adapted = net.forward(ids);
  EXPECT_GT(largest_difference(before, adapted), 1e-3);
  EXPECT_EQ(merge_adapters(net), adapters);
  EXPECT_LT(largest_difference(adapted, net.forward(ids)), 1e-5);
}

TEST(Adapters, HaveTheNamesOfPeft) {
  const auto names_of = [](const TransformerConfig& config) {
    const nn::Layers net =
        transformer(config, {.adapters = {.rank = 2, .targets = adapter_targets(config)}});
    std::vector<std::string> names;
    for (const auto& [name, tensor] : adapter_views(config, net.named_parameters()))
      names.push_back(name);
    return names;
  };
  const std::vector<std::string> llama = names_of(tiny_llama());
  EXPECT_EQ(llama.size(), 2U * 7 * 2);
  for (const char* name : {"base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight",
                           "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"})
    EXPECT_EQ(std::count(llama.begin(), llama.end(), name), 1) << name;
  const std::vector<std::string> gpt2 = names_of(tiny_gpt2());
  EXPECT_EQ(gpt2.size(), 2U * 4 * 2);
  for (const char* name : {"base_model.model.transformer.h.0.attn.c_attn.lora_A.weight",
                           "base_model.model.transformer.h.1.mlp.c_proj.lora_B.weight"})
    EXPECT_EQ(std::count(gpt2.begin(), gpt2.end(), name), 1) << name;
}

TEST(Transformer, NamesIdsOutOfRange) {
  nn::Layers net = transformer(tiny_gpt2());
  at::Tensor ids = some_ids(2, 5, 40);
  ids[1][3] = 40;
  try {
    net.forward(ids);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("token id 40 in row 1, column 3"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(net.forward(some_ids(1, 17, 40)), UsageError);
}

TEST(Transformer, NamesPlacesOutOfRangeAndRowsWithoutTokens) {
  for (const auto& config : {tiny_gpt2(), tiny_llama()}) {
    const nn::Layers net = transformer(config);
    const auto refusal = [&](const at::Tensor& ids) {
      try {
        net.forward(ids);
        return std::string();
      } catch (const UsageError& error) {
        return std::string(error.what());
      }
    };
    at::Tensor ids = torch::zeros({2, 3, 2}, at::kLong);
    EXPECT_EQ(refusal(ids), "");
    ids[1][2][1] = config.context;
    EXPECT_THAT(refusal(ids), HasSubstr(text("place ", config.context, " in row 1, column 2")));
    ids[1][2][1] = -2;
    EXPECT_THAT(refusal(ids), HasSubstr("place -2"));
    EXPECT_THAT(refusal(torch::zeros({2, 0}, at::kLong)), HasSubstr("takes rows with tokens"));
    EXPECT_THAT(refusal(torch::zeros({0, 3}, at::kLong)), HasSubstr("takes rows with tokens"));
  }
}

TEST(Transformer, RefusesSharesOutOfRange) {
  for (const double share : {-0.5, 1.0, 1.5, std::nan("")}) {
    TransformerConfig config = tiny_gpt2();
    config.dropout = {.embedding = share, .residual = share, .attention = share};
    try {
      transformer(config, {.attention = AttentionCore::Written});
      ADD_FAILURE() << share;
    } catch (const UsageError& error) {
      for (const char* what : {"an embedding dropout", "an attention dropout", "a residual"})
        EXPECT_THAT(error.what(), HasSubstr(what));
    }
  }
  TransformerConfig config = tiny_llama();
  config.norm_epsilon = -1;
  EXPECT_THROW(transformer(config), UsageError);
}

TEST(Transformer, ReportsAllFaultsAtOnce) {
  TransformerConfig config = tiny_llama();
  config.kv_heads = 3;
  config.head_size = 5;
  config.dropout.attention = 0.1;
  try {
    transformer(config);
    FAIL();
  } catch (const UsageError& error) {
    for (const char* fault : {"kv_heads = 3", "even head_size", "attention dropout"})
      EXPECT_NE(std::string(error.what()).find(fault), std::string::npos) << error.what();
  }
}

// Queries behind cached keys align with the end of the keys, and a row without keys gives 0.
TEST(Attend, QueriesAreTheLastPlacesOfTheKeys) {
  torch::manual_seed(3);
  const at::Tensor q = torch::randn({2, 4, 6, 8}), k = torch::randn({2, 2, 6, 8}),
                   v = torch::randn({2, 2, 6, 8});
  for (const AttentionCore core : {AttentionCore::Fused, AttentionCore::Written}) {
    const at::Tensor all = attend(q, k, v, {.core = core});
    const at::Tensor plain = torch::scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), {}, 0, /*is_causal=*/true);
    EXPECT_LT(largest_difference(all, plain), 1e-6);
    for (const std::int64_t last : {1, 2, 5})
      EXPECT_LT(largest_difference(attend(q.narrow(2, 6 - last, last), k, v, {.core = core}),
                                   plain.narrow(2, 6 - last, last)),
                1e-6);
    at::Tensor mask = torch::zeros({1, 1, 6, 6});
    mask.select(2, 2).fill_(-std::numeric_limits<float>::infinity());
    const at::Tensor masked = attend(q, k, v, {.core = core, .mask = mask});
    EXPECT_EQ(masked.select(2, 2).abs().max().item<float>(), 0);
    EXPECT_TRUE(masked.isfinite().all().item<bool>());
    // One query that sees keys 2 to 5 in row 0 and none in row 1.
    at::Tensor one = left_padding_mask(torch::tensor({2, 6}, torch::kLong), 1, 6);
    const at::Tensor last = attend(q.narrow(2, 5, 1), k, v, {.core = core, .mask = one});
    EXPECT_EQ(last[1].abs().max().item<float>(), 0);
    EXPECT_LT(largest_difference(last[0], attend(q.narrow(2, 5, 1), k.narrow(2, 2, 4),
                                                 v.narrow(2, 2, 4), {.core = core})[0]),
              1e-6);
  }
}

// Hugging Face's numbers for theta 10000, factor 8, 1, 4, 128 of 8-element heads.
TEST(Rotary, Llama3ScalingKeepsHighFrequenciesAndDividesLowOnes) {
  TransformerConfig config = tiny_llama();
  config.head_size = 8;
  config.rope = {.theta = 10000,
                 .scaling = TransformerConfig::Rope::Scaling::Llama3,
                 .factor = 8,
                 .low_frequency_factor = 1,
                 .high_frequency_factor = 4,
                 .original_context = 128};
  const std::vector<double> scaled = rotary_frequencies(config);
  ASSERT_EQ(scaled.size(), 4U);
  EXPECT_DOUBLE_EQ(scaled[0], 1);  // a wavelength of 6.3 tokens
  EXPECT_NEAR(scaled[2], 0.01 / 8, 1e-12);
  EXPECT_NEAR(scaled[3], 0.001 / 8, 1e-12);
  EXPECT_GT(scaled[1], 0.1 / 8);
  EXPECT_LT(scaled[1], 0.1);
}

}  // namespace
}  // namespace trestle::models
