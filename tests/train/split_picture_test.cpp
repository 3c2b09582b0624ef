// The picture of a tensor split, against the models and the formulas that it describes.
#include "trestle/train/split_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/plan/transformer_traffic.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/setup.h"

namespace trestle::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using view::SplitPicture;
using Kind = SplitPicture::Message::Kind;
using Range = SplitPicture::Range;

// 8 heads, in a Llama 2 of keys and values; an MLP and a vocabulary that no number of ranks above
// one divides.
recipe::Recipe recipe_of(const std::string& name, int ranks, bool sequence = false) {
  return recipe::parse_recipe(
      text("[model]\nname = \"", name, "\"\nwidth = 32\n[transformer]\nlayers = 3\nheads = 8\n",
           name == "llama" ? "kv_heads = 2\n" : "", "mlp = 67\nvocabulary = 43\ncontext = 16\n",
           "[data]\nname = \"tokens\"\n[mesh]\ntensor = ", ranks, "\n",
           sequence ? "sequence_parallel = true\n" : ""),
      "split.toml");
}

// Adapters at all places, beside frozen matrices of this type.
recipe::Recipe with_adapters(recipe::Recipe recipe, const char* frozen_type) {
  recipe.adapters.rank = 3;
  recipe.adapters.targets = models::adapter_targets(transformer_config(recipe));
  recipe.adapters.frozen_type = frozen_type;
  return recipe;
}

recipe::Recipe recipe_of_config(const std::string& name, const std::string& config, int ranks) {
  return recipe::parse_recipe(
      text("[model]\nname = \"", name, "\"\n[transformer]\nconfig = \"", config,
           "\"\n[data]\nname = \"tokens\"\n[mesh]\ntensor = ", ranks, "\n"),
      "split.toml");
}

const SplitPicture::Tensor& tensor_of(const SplitPicture& picture, const std::string& step,
                                      const std::string& name) {
  for (const auto& section : picture.sections)
    for (const auto& one : section.steps)
      if (one.name == step)
        for (const auto& tensor : one.tensors)
          if (tensor.name == name) return tensor;
  throw StateError(text("no tensor ", step, ".", name));
}

void expect_bytes_of_ranks(const recipe::Recipe& recipe) {
  const auto ranks = static_cast<int>(recipe.mesh.tensor);
  const SplitPicture picture = split_picture(recipe);
  for (int rank = 0; rank < ranks; ++rank) {
    const nn::Layers net = models::transformer(
        transformer_config(recipe),
        {.adapters = adapter_options(recipe),
         .frozen_type = frozen_type(recipe),
         .tensor = {.ranks = tensor_parallel::TensorRanks::on_paper(rank, ranks)}});
    Bytes expected = 0, drawn = 0;
    for (const auto& [parameter, tensor] : net.named_parameters())
      expected += static_cast<Bytes>(tensor.nbytes());
    for (const auto& section : picture.sections)
      for (const auto& step : section.steps)
        for (const auto& tensor : step.tensors)
          drawn += section.copies * view::bytes_on_rank(tensor, rank);
    EXPECT_EQ(drawn, expected) << recipe.model.name << ", rank " << rank << " of " << ranks;
  }
}

TEST(SplitPictureOfRecipe, HoldsTheBytesOfEachRanksModel) {
  for (const char* name : {"gpt2", "llama"})
    for (const int ranks : {1, 2, 4, 8}) {
      expect_bytes_of_ranks(recipe_of(name, ranks));
      for (const char* type : {"fp32", "bf16", "int8"})
        expect_bytes_of_ranks(with_adapters(recipe_of(name, ranks), type));
    }
}

TEST(SplitPictureOfRecipe, HoldsTheBytesOfEachRanksModelAlsoByAPlan) {
  for (const char* name : {"unet", "unet3d", "resnet18_flat", "resnet50", "toy", "mlp"})
    for (const int ranks : {1, 2, 3}) {
      const auto recipe = recipe::parse_recipe(
          text("[model]\nname = \"", name, "\"\nwidth = 4\n[mesh]\ntensor = ", ranks, "\n"),
          "plan.toml");
      const SplitPicture picture = split_picture(recipe);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto on_paper = tensor_parallel::TensorRanks::on_paper(rank, ranks);
        const nn::Layers net = make_model(recipe, {}, {.ranks = on_paper});
        Bytes expected = 0, drawn = 0;
        for (const auto& [parameter, tensor] : net.named_parameters())
          expected += static_cast<Bytes>(tensor.nbytes());
        for (const auto& section : picture.sections)
          for (const auto& step : section.steps)
            for (const auto& tensor : step.tensors)
              drawn += section.copies * view::bytes_on_rank(tensor, rank);
        EXPECT_EQ(drawn, expected) << name << ", rank " << rank << " of " << ranks;
      }
    }
}

struct Calls {
  std::int64_t all_reduce = 0, all_gather = 0, reduce_scatter = 0;
  bool operator==(const Calls&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Calls& calls) {
  return out << calls.all_reduce << " all-reduces, " << calls.all_gather << " gathers, "
             << calls.reduce_scatter << " reduce-scatters";
}

Calls calls_of(const Traffic& traffic) {
  return {traffic.all_reduce.calls, traffic.all_gather.calls, traffic.reduce_scatter.calls};
}

void count(const std::vector<SplitPicture::Message>& messages, Calls* calls) {
  for (const auto& message : messages)
    ++(message.kind == Kind::AllReduce   ? calls->all_reduce
       : message.kind == Kind::AllGather ? calls->all_gather
                                         : calls->reduce_scatter);
}

struct StepCalls {
  Calls forward, backward;
};

void count(const SplitPicture::Section& section, StepCalls* calls) {
  for (const auto& step : section.steps)
    for (const auto* exchange : {&step.before, &step.after}) {
      count(exchange->forward, &calls->forward);
      count(exchange->backward, &calls->backward);
    }
}

TEST(SplitPictureOfRecipe, NamesTheMessagesOfTheFormulas) {
  for (const char* name : {"gpt2", "llama"})
    for (const int ranks : {1, 2, 4, 8})
      for (const bool sequence : {false, true}) {
        if (sequence && ranks == 1) continue;
        for (const bool joined : {false, true}) {
          recipe::Recipe recipe = recipe_of(name, ranks, sequence);
          if (joined) recipe.train.loss = "cross_entropy";
          SCOPED_TRACE(text(name, ", ", ranks, " ranks, sequence ", sequence, joined));
          const auto config = transformer_config(recipe);
          const plan::BlockSizes sizes{
              .style = config.style == models::TransformerConfig::Style::Gpt2
                           ? plan::BlockSizes::Style::Gpt2
                           : plan::BlockSizes::Style::Llama,
              .tokens = 16,
              .width = config.width,
              .heads = config.heads,
              .kv_heads = config.kv_heads,
              .head_size = config.head_size,
              .mlp = config.mlp};
          const plan::BlockSettings settings{.tensor = ranks, .sequence = sequence};
          const auto block = plan::traffic_of_block(sizes, settings);
          const auto around = plan::traffic_of_vocabulary(
              sizes, settings, {.rows = config.vocabulary, .joins_scores = joined});
          const SplitPicture picture = split_picture(recipe);
          ASSERT_EQ(picture.sections.size(), 3u);
          StepCalls of_block, of_rest;
          count(picture.sections[1], &of_block);
          count(picture.sections[0], &of_rest);
          count(picture.sections[2], &of_rest);
          EXPECT_EQ(of_block.forward, calls_of(block.forward));
          EXPECT_EQ(of_block.backward, calls_of(block.backward));
          EXPECT_EQ(of_rest.forward, calls_of(around.forward));
          EXPECT_EQ(of_rest.backward, calls_of(around.backward));
        }
      }
}

// The input of the first block has no gradient, which the picture of one block for all cannot show.
TEST(SplitPictureOfRecipe, NamesTheMessagesOfAdapters) {
  for (const char* name : {"gpt2", "llama"})
    for (const int ranks : {2, 4})
      for (const bool sequence : {false, true}) {
        SCOPED_TRACE(text(name, ", ", ranks, " ranks, sequence ", sequence));
        recipe::Recipe recipe = with_adapters(recipe_of(name, ranks, sequence), "int8");
        recipe.train.loss = "cross_entropy";  // scores of all ranks
        const auto on_paper = tensor_parallel::TensorRanks::on_paper(0, ranks);
        const nn::Layers net = models::transformer(
            transformer_config(recipe), {.adapters = adapter_options(recipe),
                                         .frozen_type = frozen_type(recipe),
                                         .tensor = {.ranks = on_paper, .sequence = sequence}});
        const at::Tensor scores = net.forward(at::zeros({1, 16}, at::kLong));
        const Calls forward = calls_of(on_paper.traffic());
        scores.sum().backward();
        Calls all = calls_of(on_paper.traffic());
        const SplitPicture picture = split_picture(recipe);
        StepCalls drawn;
        for (const auto& section : picture.sections)
          for (std::int64_t copy = 0; copy < section.copies; ++copy) count(section, &drawn);
        EXPECT_EQ(drawn.forward, forward);
        ++(sequence ? all.reduce_scatter : all.all_reduce);
        drawn.backward.all_reduce += forward.all_reduce;
        drawn.backward.all_gather += forward.all_gather;
        drawn.backward.reduce_scatter += forward.reduce_scatter;
        EXPECT_EQ(drawn.backward, all);
      }
}

TEST(SplitPictureOfRecipe, HasTheRangesOfUnevenSlices) {
  const SplitPicture picture = split_picture(recipe_of("gpt2", 4));
  const auto& tokens = tensor_of(picture, "embed", "tokens");
  EXPECT_THAT(tokens.held, ElementsAre(ElementsAre(Range{0, 11}), ElementsAre(Range{11, 11}),
                                       ElementsAre(Range{22, 11}), ElementsAre(Range{33, 10})));
  EXPECT_EQ(tensor_of(picture, "head", "weight").tied_to, "embed.tokens");
  const auto& qkv = tensor_of(picture, "attention.qkv", "bias");
  EXPECT_THAT(qkv.held[1], ElementsAre(Range{8, 8}, Range{40, 8}, Range{72, 8}));
  const auto& down = tensor_of(picture, "mlp.down", "weight");
  EXPECT_EQ(down.dimension, 1u);
  EXPECT_THAT(down.held[3], ElementsAre(Range{51, 16}));
  EXPECT_TRUE(tensor_of(picture, "mlp.down", "bias").held.empty()) << "added once, by all ranks";
}

TEST(SplitPictureOfRecipe, NamesTheHeadsOfKeysThatRanksShare) {
  const SplitPicture picture = split_picture(recipe_of("llama", 4));
  const auto& parts = tensor_of(picture, "attention.qkv", "weight").parts;
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_TRUE(parts[0].gathered_head.empty());
  EXPECT_THAT(parts[1].gathered_head, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(parts[2].gathered_head, ElementsAre(0, 0, 1, 1));
  const SplitPicture two = split_picture(recipe_of("llama", 2));
  EXPECT_TRUE(tensor_of(two, "attention.qkv", "weight").parts[1].gathered_head.empty());
}

TEST(SplitPictureOfRecipe, IsDrawnForEachNumberOfRanks) {
  for (const char* name : {"gpt2", "llama"})
    for (const int ranks : {1, 2, 4, 8})
      for (const recipe::Recipe& recipe :
           {recipe_of(name, ranks), with_adapters(recipe_of(name, ranks), "int8")}) {
        EXPECT_THAT(view::to_svg_split(split_picture(recipe)),
                    HasSubstr(ranks == 1 ? "whole on the only rank" : "one of 3 alike"));
        EXPECT_FALSE(view::to_text_split(split_picture(recipe)).empty());
      }
}

// A line such as "VmRSS:  1234 kB" in /proc/self/status, in bytes.
std::int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  ADD_FAILURE() << "/proc/self/status has no " << name;
  return 0;
}

// 8 billion parameters are 32 GB.
TEST(SplitPictureOfRecipe, TakesNoMemoryForWeights) {
  std::ofstream("/proc/self/clear_refs") << 5;  // VmHWM is the peak since here
  const std::int64_t before = status_bytes("VmRSS");
  const SplitPicture picture = split_picture(recipe_of_config("llama", "llama-3.1-8b", 8));
  EXPECT_LT(status_bytes("VmHWM") - before, 64 << 20);
  EXPECT_THAT(tensor_of(picture, "mlp.gate_up", "weight").held[7],
              ElementsAre(Range{12544, 1792}, Range{26880, 1792}));
}

std::string refusal_of(const recipe::Recipe& recipe) {
  try {
    split_picture(recipe);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "it was drawn";
}

TEST(SplitPictureOfRecipe, IsRefusedForSizesThatRanksCannotShare) {
  EXPECT_THAT(refusal_of(recipe_of("gpt2", 3)),
              AllOf(HasSubstr("heads = 8"), HasSubstr("over 3 tensor ranks, but over 1, 2, 4, 8")));
  EXPECT_THAT(refusal_of(recipe_of_config("llama", "smollm2-135m", 2)),
              AllOf(HasSubstr("heads = 9, kv_heads = 3"), HasSubstr("but over 1, 3, 9")));
  EXPECT_THAT(refusal_of(recipe_of("gpt2", 128)), HasSubstr("a split over 128 ranks"));
  EXPECT_THAT(refusal_of(recipe::parse_recipe(
                  "[model]\nname = \"unet\"\nwidth = 2\n[mesh]\ntensor = 3\n", "unet.toml")),
              HasSubstr("cannot be split over 3 tensor ranks"));
}

}  // namespace
}  // namespace trestle::train
