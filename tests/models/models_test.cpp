#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trestle/base/error.h"
#include "trestle/models/model.h"
#include "trestle/models/resnet.h"
#include "trestle/models/toy.h"
#include "trestle/models/unet.h"
#include "trestle/models/unet3d.h"

namespace trestle::models {
namespace {

std::vector<std::string> names_of(const nn::Layers& net) {
  std::vector<std::string> names;
  for (const nn::Layer& layer : net.graph().layers) names.push_back(layer.name);
  return names;
}

TEST(UNet, HasTheReferencesLayersAndParameters) {
  const nn::Layers net = unet();
  EXPECT_EQ(net.parameter_count(), 31'037'698);
  EXPECT_THAT(
      names_of(net),
      testing::ElementsAre("in", "cat1", "down1", "cat2", "down2", "cat3", "down3", "cat4", "down4",
                           "up1_t", "up1_pop", "up1_conv", "up2_t", "up2_pop", "up2_conv", "up3_t",
                           "up3_pop", "up3_conv", "up4_t", "up4_pop", "up4_conv", "out"));
  EXPECT_EQ(unet({.bilinear = true}).parameter_count(), 11'455'618);
}

TEST(UNet, KeepsTheSizeOfAnyImage) {
  for (const bool bilinear : {false, true}) {
    const nn::Layers net = unet({.in_channels = 1, .classes = 3, .width = 2, .bilinear = bilinear});
    for (const auto& [rows, columns] : {std::pair{16, 16}, {33, 18}, {31, 47}}) {
      EXPECT_EQ(net.forward(at::ones({2, 1, rows, columns})).sizes(),
                at::IntArrayRef({2, 3, rows, columns}));
    }
  }
}

TEST(UNet, FourLongSkips) {
  const nn::Graph graph = unet({.width = 2}).graph();
  std::vector<std::pair<int, int>> skips;
  for (const nn::Edge& edge : graph.edges) {
    if (!edge.name.empty()) skips.emplace_back(edge.from_layer, edge.to_layer);
  }
  const std::vector<std::pair<int, int>> expected = {{7, 10}, {5, 13}, {3, 16}, {1, 19}};
  EXPECT_EQ(skips, expected);
}

// The rule of the U-Nets: (convolution, norm) twice on each level down and up, a transposed
// convolution with the kernel of the level's pooling, and a last convolution of side 1.
std::int64_t parameters_by_rule(std::int64_t dimensions, std::int64_t in_channels,
                                std::int64_t width, const std::vector<std::int64_t>& pooled) {
  const std::int64_t kernel = dimensions == 2 ? 9 : 27, classes = 2;
  const auto twice = [&](std::int64_t in, std::int64_t out) {
    return kernel * (in * out + out * out) + 4 * out;
  };
  std::int64_t count = twice(in_channels, width), channels = width;
  for (const std::int64_t voxels : pooled) {
    count += twice(channels, 2 * channels);                // down
    count += 2 * channels * channels * voxels + channels;  // up: the transposed convolution
    count += twice(2 * channels, channels);                // up: the joined channels
    channels *= 2;
  }
  return count + width * classes + classes;
}

TEST(UNet3d, HasTheParametersOfTheTwoDimensionalRule) {
  EXPECT_EQ(parameters_by_rule(2, 3, 64, {4, 4, 4, 4}), unet().parameter_count());
  EXPECT_EQ(parameters_by_rule(3, 1, 32, {8, 8, 8, 8}), unet3d().parameter_count());
  EXPECT_EQ(unet3d().parameter_count(), 22'578'306);
  EXPECT_EQ(names_of(unet3d()), names_of(unet()));
  for (std::int64_t depth = 1; depth <= 3; ++depth) {
    const std::vector<std::int64_t> pooled(static_cast<std::size_t>(depth), 8);
    EXPECT_EQ(unet3d({.width = 6, .depth = depth}).parameter_count(),
              parameters_by_rule(3, 1, 6, pooled));
  }
  EXPECT_EQ(unet3d({.width = 6, .depth = 2, .pooling = {{1, 2, 2}, {2, 2, 3}}}).parameter_count(),
            parameters_by_rule(3, 1, 6, {4, 12}));
}

TEST(UNet3d, KeepsTheSizeOfAnyVolume) {
  for (const bool trilinear : {false, true}) {
    const UNet3dOptions options = {.classes = 3,
                                   .width = 2,
                                   .depth = 2,
                                   .pooling = {{1, 2, 2}, {2, 2, 2}},
                                   .trilinear = trilinear};
    const nn::Layers net = unet3d(options);
    const Pooling side = smallest_side(options);
    EXPECT_EQ(side, (Pooling{2, 4, 4}));
    for (const Pooling& size : {side, Pooling{5, 8, 9}, Pooling{3, 7, 18}}) {
      EXPECT_EQ(net.forward(at::ones({2, 1, size[0], size[1], size[2]})).sizes(),
                at::IntArrayRef({2, 3, size[0], size[1], size[2]}));
    }
  }
}

TEST(UNet3d, RefusesWhatCannotBeBuilt) {
  EXPECT_THROW(unet3d({.depth = 0}), UsageError);
  EXPECT_THROW(unet3d({.depth = 9}), UsageError);
  EXPECT_THROW(unet3d({.width = 3, .trilinear = true}), UsageError);
  EXPECT_THROW(unet3d({.depth = 2, .pooling = {{2, 2, 2}}}), UsageError);
  EXPECT_THROW(unet3d({.depth = 1, .pooling = {{1, 1, 1}}}), UsageError);
  EXPECT_THROW(unet3d({.depth = 1, .pooling = {{0, 2, 2}}}), UsageError);
  EXPECT_EQ(parse_pooling("1x2x16"), (Pooling{1, 2, 16}));
  for (const char* words :
       {"", "2", "2x2", "2x2x2x2", "2x2xa", "2x2x 2", "99999999999999999999x1x1"})
    EXPECT_THROW(parse_pooling(words), UsageError) << words;
}

TEST(ResNet, HasTheReferencesLayersAndParameters) {
  const nn::Layers net = resnet18();
  EXPECT_EQ(net.parameter_count(), 11'175'370);
  EXPECT_EQ(resnet18_flat().parameter_count(), 11'175'370);
  EXPECT_THAT(names_of(net),
              testing::ElementsAre("input_layer", "basic_block11", "basic_block12", "basic_block21",
                                   "basic_block22", "basic_block31", "basic_block32",
                                   "basic_block41", "basic_block42", "output_layer"));
}

TEST(ResNet, TheFlatVariantIsTheSameNet) {
  const nn::Layers whole = resnet18({.width = 4});
  const nn::Layers flat = resnet18_flat({.width = 4});
  EXPECT_EQ(flat.size(), 62u);
  const auto from = whole.named_parameters();
  const auto to = flat.named_parameters();
  ASSERT_EQ(from.size(), to.size());
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(from[i].first, to[i].first);
    to[i].second.copy_(from[i].second);
  }
  const at::Tensor x = at::rand({4, 1, 28, 28});
  EXPECT_TRUE(whole.forward(x).equal(flat.forward(x)));
}

TEST(TwoLinears, EqualsTheTutorialsToyModel) {
  const nn::Layers net = two_linears();
  EXPECT_THAT(names_of(net), testing::ElementsAre("net1", "relu", "net2"));
  EXPECT_EQ(net.parameter_count(), 10 * 10 + 10 + 10 * 5 + 5);
  EXPECT_EQ(net.forward(at::ones({20, 10})).sizes(), at::IntArrayRef({20, 5}));
}

TEST(Model, WeightsDependOnlyOnTheSeedAndTheLayersName) {
  torch::manual_seed(1);
  const at::Tensor before = at::rand({1});
  torch::manual_seed(1);
  const at::Tensor a = mlp({.depth = 1, .seed = 5}).parameters()[0];
  EXPECT_TRUE(at::rand({1}).equal(before));  // the default generator was left alone
  EXPECT_TRUE(a.equal(mlp({.depth = 3, .seed = 5}).parameters()[0]));
  EXPECT_FALSE(a.equal(mlp({.depth = 1, .seed = 6}).parameters()[0]));
}

// A small model of each name.
ModelOptions small(const std::string& name, std::uint64_t seed = 42) {
  ModelOptions options{.name = name, .width = 4, .seed = seed};
  if (name != "gpt2" && name != "llama") return options;
  options.transformer = TransformerConfig{.vocabulary = 11,
                                          .context = 8,
                                          .width = 4,
                                          .layers = 2,
                                          .heads = 2,
                                          .kv_heads = 2,
                                          .head_size = 2,
                                          .mlp = 8};
  options.transformer->tied_head = false;  // a tied head creates the embedding
  if (name == "llama") options.transformer->style = TransformerConfig::Style::Llama;
  return options;
}

// A process of a pipeline creates only its own stage's layers.
TEST(Model, LayersCreatedAloneHaveTheWholeModelsWeights) {
  for (const std::string& name : model_names()) {
    const ModelOptions options = small(name, 11);
    const nn::Graph whole = make_model(options).graph();
    for (const nn::Layer& layer : whole.layers) layer.module.make();
    const nn::Graph part = make_model(options).graph();
    const int count = static_cast<int>(part.layers.size());
    const int first = std::min(3, count - 3);
    int compared = 0;
    for (const int i : {first + 2, first, first + 1}) {
      part.layers[i].module.make();
      const NamedTensors expected = whole.layers[i].named_parameters();
      const NamedTensors actual = part.layers[i].named_parameters();
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t p = 0; p < actual.size(); ++p, ++compared) {
        EXPECT_EQ(actual[p].first, expected[p].first);
        EXPECT_TRUE(actual[p].second.equal(expected[p].second)) << name << " layer " << i;
      }
    }
    EXPECT_GT(compared, 0) << name;
    for (int i = 0; i < count; ++i) {
      if (i >= first && i < first + 3) continue;
      EXPECT_FALSE(part.layers[i].module.made()) << name << " layer " << i;
    }
  }
}

TEST(Model, ByName) {
  for (const std::string& name : model_names()) {
    EXPECT_GT(make_model(small(name)).parameter_count(), 0) << name;
  }
  EXPECT_THROW(make_model({.name = "gpt2"}), UsageError) << "it needs sizes";
  EXPECT_EQ(make_model({.name = "unet", .bilinear = true}).parameter_count(), 11'455'618);
  const auto message = [](const ModelOptions& options) -> std::string {
    try {
      make_model(options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message({.name = "resnet8"}), testing::HasSubstr("did you mean 'resnet18'?"));
  EXPECT_THAT(message({.name = "unet", .width = -1}), testing::HasSubstr("width = -1"));
  EXPECT_THAT(message({.name = "unet", .width = 3, .bilinear = true}), testing::HasSubstr("even"));
  EXPECT_THAT(message({.name = "mlp", .bilinear = true}), testing::HasSubstr("'bilinear'"));
  EXPECT_THAT(message({.name = "unet", .depth = 3}), testing::HasSubstr("only 'unet3d' has it"));
  EXPECT_THAT(message({.name = "unet3d", .depth = 3, .pooling = {"1x2"}}),
              testing::HasSubstr("'1x2' is no pooling"));
  EXPECT_THAT(message({.name = "unet3d", .depth = 3, .pooling = {"1x2x2"}}),
              testing::HasSubstr("'pooling' has 1 levels, and the depth of the 3-D U-Net is 3"));
}

}  // namespace
}  // namespace trestle::models
