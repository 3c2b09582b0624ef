#include "trestle/models/transformer/int8_rows.h"
#include "tests/models/tiny_transformers.h"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/models/tiny_transformers.h"
#include "trestle/models/transformer/adapters.h"
#include "trestle/models/transformer/product.h"
#include "trestle/models/transformer/transformer.h"

namespace trestle::models {
namespace {

TEST(Int8RowsOfMatrix, AreRoundedToTheNearest127thOfTheLargest) {
  const at::Tensor matrix =
      torch::tensor({{12.7, -6.34, 0.06, 0.04}, {0.0, 0.0, 0.0, 0.0}, {-254.0, 1.1, 2.0, -127.0}});
  const Int8Rows rows = to_int8_rows(matrix.to(torch::kFloat));
  EXPECT_EQ(rows.rows.scalar_type(), torch::kChar);
  EXPECT_TRUE(torch::equal(
      rows.rows.to(torch::kLong),
      torch::tensor({{127, -63, 1, 0}, {0, 0, 0, 0}, {-127, 1, 1, -64}}, torch::kLong)))
      << rows.rows;
  EXPECT_TRUE(torch::allclose(rows.scales, torch::tensor({0.1F, 0.0F, 2.0F})));
  EXPECT_TRUE(torch::allclose(
      from_int8_rows(rows, torch::kFloat),
      torch::tensor(
          {{12.7F, -6.3F, 0.1F, 0.0F}, {0.0F, 0.0F, 0.0F, 0.0F}, {-254.0F, 2.0F, 2.0F, -128.0F}})));
}

TEST(Int8RowsOfMatrix, ProductAndItsGradientAreThoseOfTheMatrix) {
  torch::manual_seed(1);
  const Int8Rows rows = to_int8_rows(torch::randn({6, 5}));
  const at::Tensor matrix = from_int8_rows(rows, torch::kFloat), bias = torch::randn({6});
  for (const at::ScalarType type : {torch::kFloat, torch::kBFloat16}) {
    const at::Tensor x = torch::randn({2, 3, 5}).to(type).requires_grad_();
    const at::Tensor plain = torch::linear(x, matrix.to(type), bias.to(type));
    const at::Tensor ours = product(x, rows, bias);
    EXPECT_EQ(ours.scalar_type(), type);
    const double tolerance = type == torch::kFloat ? 1e-6 : 0.05;
    EXPECT_TRUE(torch::allclose(ours, plain, tolerance, tolerance));
    const at::Tensor gradient = torch::randn({2, 3, 6}).to(type);
    EXPECT_TRUE(torch::allclose(torch::autograd::grad({ours}, {x}, {gradient})[0],
                                torch::autograd::grad({plain}, {x}, {gradient})[0], tolerance,
                                tolerance));
  }
}

// Vectors without a gradient are rounded to 16 bits; the oracle is the exact sum in doubles.
TEST(Int8RowsOfMatrix, FewVectorsAreMultipliedByTheNumbersThemselves) {
  torch::manual_seed(2);
  const at::NoGradGuard no_grad;
  for (const std::int64_t inputs : {1, 5, 16, 31, 48, 577, 9000})
    for (const std::int64_t count : {1, 3, 16, 17})
      for (const at::ScalarType type : {torch::kFloat, torch::kBFloat16}) {
        SCOPED_TRACE(testing::Message() << count << " vectors of " << inputs << " " << type);
        const Int8Rows rows = to_int8_rows(torch::randn({7, inputs}));
        // Rows of another tensor, not contiguous, of very different sizes; one row is zero.
        at::Tensor x = torch::randn({inputs, count}).t().to(type);
        x.mul_(torch::logspace(-20, 20, count).unsqueeze(1));
        if (count > 1) x[1].zero_();
        const at::Tensor matrix = rows.rows.to(torch::kDouble) * rows.scales.unsqueeze(1);
        const at::Tensor exact = torch::linear(x.to(torch::kDouble), matrix);
        const at::Tensor sizes = torch::linear(x.to(torch::kDouble).abs(), matrix.abs());
        const at::Tensor ours = product(x, rows);
        ASSERT_EQ(ours.sizes(), exact.sizes());
        EXPECT_EQ(ours.scalar_type(), type);
        // Half a unit of the largest number, for each weight; and the rounding of the result.
        const double unit = inputs > 4000 ? 1.0 / 14000 : 1.0 / 32000;
        const at::Tensor largest = x.to(torch::kDouble).abs().amax(1, true);
        const at::Tensor bound = largest * matrix.abs().sum(1) * (unit / 2) +
                                 sizes * (type == torch::kFloat ? 1e-6 : 0.01);
        EXPECT_TRUE(((ours.to(torch::kDouble) - exact).abs() <= bound).all().item<bool>());
      }
}

TEST(Int8RowsOfMatrix, LargestNumbersOfFewVectorsDoNotOverflow) {
  const at::NoGradGuard no_grad;
  for (const std::int64_t inputs : {4096, 100'000}) {
    const Int8Rows rows{.rows = torch::full({2, inputs}, -127, torch::kChar),
                        .scales = torch::tensor({1.0F, 0.5F})};
    const at::Tensor ours = product(torch::full({1, inputs}, -3.0F), rows);
    const auto sum = 3.0 * 127 * static_cast<double>(inputs);
    EXPECT_NEAR(ours[0][0].item<double>(), sum, 1e-5 * sum);
    EXPECT_NEAR(ours[0][1].item<double>(), sum / 2, 1e-5 * sum);
  }
}

// Which instructions compute it depends on the processor and on the number of vectors.
TEST(Product, Bf16WeightsGiveRoundedExactSumsInInferenceMode) {
  torch::manual_seed(3);
  const at::Tensor weight = torch::randn({9, 200}).to(torch::kBFloat16), bias = torch::randn({9});
  for (const std::int64_t count : {1, 16, 17, 40})
    for (const at::ScalarType type : {torch::kFloat, torch::kBFloat16}) {
      const at::Tensor x = torch::randn({count, 200}).to(type);
      const at::Tensor exact =
          torch::linear(x.to(torch::kBFloat16).to(torch::kDouble), weight.to(torch::kDouble),
                        bias.to(torch::kBFloat16).to(torch::kDouble));
      const c10::InferenceMode inference;
      const at::Tensor ours = product(x, weight, bias.to(torch::kBFloat16));
      EXPECT_EQ(ours.scalar_type(), type);
      EXPECT_TRUE(torch::allclose(ours.to(torch::kDouble), exact, 0.01, 0.1)) << count;
    }
}

// Its own block of 64 inputs alone becomes coarse.
TEST(Int8RowsOfMatrix, OneLargeNumberLeavesTheOtherBlocksExact) {
  torch::manual_seed(4);
  const at::NoGradGuard no_grad;
  const at::Tensor matrix = torch::randn({50, 14336}) * 0.02;
  const Int8Rows rows = to_int8_rows(matrix);
  at::Tensor x = torch::randn({1, 14336}) * 0.1;
  x[0][5] = 3000;
  const at::Tensor wanted =
      torch::linear(x.to(torch::kDouble), from_int8_rows(rows, torch::kFloat).to(torch::kDouble));
  const at::Tensor exact = torch::linear(x.to(torch::kDouble), matrix.to(torch::kDouble));
  const auto rms = [](const at::Tensor& t) { return t.square().mean().sqrt().item<double>(); };
  EXPECT_LT(rms(product(x, rows) - wanted), 0.1 * rms(wanted - exact));
}

TEST(Int8RowsOfMatrix, TinyAndHugeVectorsKeepTheirProducts) {
  const at::NoGradGuard no_grad;
  const Int8Rows ordinary = to_int8_rows(torch::ones({1, 4}));
  for (const float size : {1e-40F, 1e-20F, 1e20F, 8e37F})
    EXPECT_NEAR(product(torch::full({1, 4}, size), ordinary).item<float>() / (4.0 * size), 1, 1e-3);
}

// Scales of 2e-7 are subnormal numbers of fp16.
TEST(Int8RowsOfMatrix, SmallRowsAreExactInFp16) {
  torch::manual_seed(5);
  const Int8Rows rows = to_int8_rows(torch::randn({8, 64}) * 1e-4);
  const at::Tensor exact = from_int8_rows(rows, torch::kFloat);
  EXPECT_TRUE(torch::equal(from_int8_rows(rows, torch::kHalf), exact.to(torch::kHalf)));
}

TEST(Int8RowsOfMatrix, FrozenTypesFreezeAModelWithoutAdapters) {
  for (const auto style : {TransformerConfig::Style::Gpt2, TransformerConfig::Style::Llama})
    for (const FrozenType type : {FrozenType::BFloat16, FrozenType::Int8}) {
      const TransformerConfig config{.style = style,
                                     .vocabulary = 20,
                                     .context = 8,
                                     .width = 8,
                                     .layers = 1,
                                     .heads = 2,
                                     .kv_heads = 2,
                                     .head_size = 4,
                                     .mlp = 16};
      const nn::Layers net = transformer(config, {.frozen_type = type});
      for (const auto& [name, parameter] : net.named_parameters())
        EXPECT_FALSE(parameter.requires_grad()) << name;
    }
}

TEST(Int8RowsOfMatrix, AVectorThatIsNotFiniteGivesNaN) {
  const at::NoGradGuard no_grad;
  const Int8Rows rows = to_int8_rows(torch::randn({4, 20}));
  at::Tensor x = torch::randn({3, 20});
  const at::Tensor without = product(x, rows);
  x[1][7] = std::numeric_limits<float>::infinity();
  x[2][0] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor ours = product(x, rows);
  EXPECT_TRUE(torch::equal(ours[0], without[0]));
  EXPECT_TRUE(ours.slice(0, 1).isnan().all().item<bool>());
}

// A change of a weight by less than 1/512 of it does not exist in bf16.
TEST(FrozenWeights, MergeWithSmallAdaptersExactly) {
  for (const FrozenType type : {FrozenType::Float32, FrozenType::BFloat16, FrozenType::Int8}) {
    const TransformerOptions options{.adapters = {.rank = 2, .targets = {"q_proj", "down_proj"}},
                                     .frozen_type = type};
    const nn::Layers net = transformer(tiny_llama(), options);
    const nn::Layers base = transformer(tiny_llama(), options);
    dequantise(base);
    std::map<std::string, at::Tensor> before;
    for (const auto& [name, tensor] : base.named_parameters())
      before[name] = tensor.detach().to(torch::kDouble).clone();
    std::map<std::string, at::Tensor> ours;
    torch::manual_seed(4);
    for (const auto& [name, tensor] : net.named_parameters()) {
      const torch::NoGradGuard no_grad;
      if (name.ends_with(".b")) tensor.normal_(0, 1e-4);
      ours[name] = tensor.detach().to(torch::kDouble).clone();
    }
    merge_adapters(net);
    for (const auto& [name, tensor] : net.named_parameters()) {
      if (name != "blocks.0.mlp.down.weight") continue;
      const std::string adapter = "blocks.0.mlp.down.lora.";
      const double scale = LowRankOptions{.rank = 2}.alpha / 2;
      const at::Tensor added = ours.at(adapter + "b").mm(ours.at(adapter + "a")) * scale;
      const at::Tensor wrong = tensor.detach().to(torch::kDouble) - before.at(name) - added;
      EXPECT_LT(wrong.norm().item<double>(), 1e-3 * added.norm().item<double>());
    }
  }
}

// The oracle's projections are libtorch's products with the matrices in fp32.
TEST(Int8RowsOfMatrix, GiveAModelsAdaptersThePlainGradients) {
  for (const auto style : {TransformerConfig::Style::Gpt2, TransformerConfig::Style::Llama}) {
    TransformerConfig config{.style = style,
                             .vocabulary = 40,
                             .context = 16,
                             .width = 16,
                             .layers = 2,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_size = 4,
                             .mlp = 64};
    if (style == TransformerConfig::Style::Gpt2) config.kv_heads = 4;
    const TransformerOptions options{.adapters = {.rank = 3, .targets = adapter_targets(config)},
                                     .frozen_type = FrozenType::Int8};
    const nn::Layers ours = transformer(config, options), plain = transformer(config, options);
    dequantise(plain);
    std::int64_t int8_numbers = 0;
    for (const auto& [name, tensor] : ours.named_parameters())
      if (tensor.scalar_type() == torch::kChar) {
        EXPECT_FALSE(tensor.requires_grad()) << name;
        int8_numbers += tensor.numel();
      }
    // A block has queries, keys and values, the output, and the MLP.
    const std::int64_t qkv = 16 + 2 * 4 * config.kv_heads;
    const std::int64_t mlp = style == TransformerConfig::Style::Gpt2 ? 2 * 64 : 3 * 64;
    EXPECT_EQ(int8_numbers, 2 * 16 * (qkv + 16 + mlp));
    for (const auto& [name, tensor] : plain.named_parameters()) {
      EXPECT_NE(tensor.scalar_type(), torch::kChar) << name;
      EXPECT_FALSE(name.ends_with(".scales")) << name;
    }
    const at::Tensor ids = (torch::arange(18) * 37 % 40).view({2, 9});
    for (const nn::Layers& net : {ours, plain}) {
      torch::manual_seed(2);
      for (const auto& [name, tensor] : net.named_parameters())
        if (name.ends_with(".b")) {
          const torch::NoGradGuard no_grad;
          tensor.normal_(0, 0.3);
        }
      net.forward(ids).square().mean().backward();
    }
    std::map<std::string, at::Tensor> expected;
    for (const auto& [name, tensor] : plain.named_parameters())
      if (tensor.requires_grad()) expected[name] = tensor.grad();
    std::size_t compared = 0;
    for (const auto& [name, tensor] : ours.named_parameters()) {
      if (!tensor.requires_grad()) {
        EXPECT_FALSE(tensor.grad().defined()) << name;
        continue;
      }
      const at::Tensor& gradient = expected.at(name);
      EXPECT_GT(gradient.abs().max().item<double>(), 0) << name;
      EXPECT_TRUE(torch::allclose(tensor.grad(), gradient, 1e-5,
                                  1e-5 * gradient.abs().max().item<double>()))
          << name;
      ++compared;
    }
    EXPECT_EQ(compared, expected.size());
  }
}

TEST(Int8RowsOfMatrix, MergeWithAdapters) {
  TransformerConfig config{.style = TransformerConfig::Style::Llama,
                           .vocabulary = 40,
                           .context = 16,
                           .width = 16,
                           .layers = 1,
                           .heads = 4,
                           .kv_heads = 4,
                           .head_size = 4,
                           .mlp = 32};
  const nn::Layers net =
      transformer(config, {.adapters = {.rank = 2, .targets = {"q_proj", "down_proj"}},
                           .frozen_type = FrozenType::Int8});
  for (const auto& [name, tensor] : net.named_parameters())
    if (name.ends_with(".b")) {
      const torch::NoGradGuard no_grad;
      tensor.normal_(0, 0.3);
    }
  const at::Tensor ids = torch::arange(9).view({1, 9}), adapted = net.forward(ids);
  EXPECT_EQ(merge_adapters(net), 2);
  EXPECT_TRUE(torch::allclose(net.forward(ids), adapted, 1e-4, 1e-5));
}

}  // namespace
}  // namespace trestle::models
