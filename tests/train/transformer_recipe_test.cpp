#include "trestle/train/language/transformer_recipe.h"

#include <gtest/gtest.h>

#include "trestle/base/error.h"

namespace trestle::train {
namespace {

using models::TransformerConfig;

TransformerConfig config_of(const std::string& model, const std::string& transformer) {
  return transformer_config(
      recipe::parse_recipe("[model]\nname = \"" + model +
                               "\"\nwidth = 60\n[transformer]\nvocabulary = 100\n" + transformer,
                           "recipe.toml"));
}

TEST(TransformerRecipe, TakesChoicesThatAreNoSizes) {
  const TransformerConfig usual = config_of("llama", "heads = 6\n");
  EXPECT_EQ(usual.head_size, 10);
  EXPECT_EQ(usual.norm_epsilon, 1e-5);
  EXPECT_EQ(usual.rope.theta, 10000);
  EXPECT_EQ(usual.initial_deviation, 0.02);
  EXPECT_EQ(usual.activation, TransformerConfig::Activation::Silu);
  const TransformerConfig chosen =
      config_of("llama",
                "heads = 6\nhead_size = 16\nnorm_epsilon = 1e-6\nrope_theta = 5e5\n"
                "initial_deviation = 0.01\nactivation = \"gelu\"\n");
  EXPECT_EQ(chosen.head_size, 16);
  EXPECT_EQ(chosen.norm_epsilon, 1e-6);
  EXPECT_EQ(chosen.rope.theta, 5e5);
  EXPECT_EQ(chosen.initial_deviation, 0.01);
  EXPECT_EQ(chosen.activation, TransformerConfig::Activation::Gelu);
}

TEST(TransformerRecipe, NeedsHeadsThatDivideTheWidthUnlessTheirSizeIsGiven) {
  EXPECT_EQ(config_of("llama", "heads = 7\nhead_size = 8\n").head_size, 8);
  EXPECT_THROW(config_of("gpt2", "heads = 4\nhead_size = 8\n"), UsageError);
  EXPECT_THROW(config_of("gpt2", "heads = 4\nkv_heads = 2\n"), UsageError);
  EXPECT_THROW(config_of("gpt2", "heads = 7\n"), UsageError);
}

}  // namespace
}  // namespace trestle::train
