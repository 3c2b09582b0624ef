#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>
#include <string>

#include "tests/models/tiny_transformers.h"
#include "tests/tensor_parallel/checks.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/token_loss.h"

namespace trestle::models {
namespace {

using tensor_parallel::TensorRanks;
using ::testing::HasSubstr;

at::Tensor some_ids(std::int64_t rows, std::int64_t count, std::int64_t vocabulary) {
  return (torch::arange(rows * count) * 37 % vocabulary).view({rows, count});
}

// A model's loss and gradients in one process.
struct Plain {
  explicit Plain(const TransformerConfig& config, const at::Tensor& ids,
                 TransformerOptions options = {}) {
    nn::Layers net = transformer(config, options);
    for (const auto& [name, tensor] : net.named_parameters())
      weights.emplace(name, tensor.detach().clone());
    scores = net.forward(ids);
    at::cross_entropy_loss(scores.flatten(0, 1), targets(ids).flatten()).backward();
    for (const auto& [name, tensor] : net.named_parameters())
      gradients.emplace(name, tensor.grad());
  }
  static at::Tensor targets(const at::Tensor& ids) {
    return (ids.dim() == 3 ? ids.select(2, 0) : ids).roll(-1, 1);
  }
  std::map<std::string, at::Tensor> weights, gradients;
  at::Tensor scores;
};

struct Case {
  TransformerConfig config;
  int ranks = 2;
  bool sequence = false;
  at::Tensor ids;
  double dropout = 0;
};

// Section 1.7 of the facts: the error grows with depth; in double it is tiny.
void expect_near(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const double error = (a - b).norm().item<double>();
  EXPECT_LE(error, 1e-5 * b.norm().item<double>() + 1e-9)
      << what << "; of a shifted copy " << (a - b.roll(1, 0)).norm().item<double>();
}

void compare(const Case& of) {
  const TransformerOptions options;
  const Plain plain(of.config, of.ids, options);
  spawn(of.ranks, [&](World& world) {
    TransformerOptions split = options;
    split.tensor = {.ranks = TensorRanks(world.group()), .sequence = of.sequence};
    nn::Layers net = transformer(of.config, split);
    const nn::ParameterSlices slices = nn::slices_of(net.graph());
    const auto of_rank = [&](const std::string& name, const at::Tensor& whole) {
      const auto found = slices.find(name);
      return found == slices.end() ? whole : testing::slice_of(whole, found->second);
    };
    const NamedTensors parameters = net.named_parameters();
    ASSERT_EQ(parameters.size(), plain.weights.size());
    for (const auto& [name, tensor] : parameters)
      EXPECT_TRUE(at::equal(tensor, of_rank(name, plain.weights.at(name)))) << name;
    const at::Tensor scores = net.forward(of.ids);
    expect_near(scores, plain.scores, "scores");
    at::cross_entropy_loss(scores.flatten(0, 1), Plain::targets(of.ids).flatten()).backward();
    for (const auto& [name, tensor] : parameters)
      expect_near(tensor.grad(), of_rank(name, plain.gradients.at(name)),
                  text(name, " on rank ", world.rank(), " of ", world.size()));
  });
}

TEST(SplitTransformer, Gpt2EqualsThePlainModelFromTheFirstBit) {
  for (const int ranks : {1, 2, 4})
    for (const bool sequence : {false, true})
      compare({.config = tiny_gpt2(),
               .ranks = ranks,
               .sequence = sequence,
               .ids = some_ids(3, 12, 40)});
}

// At 4 ranks there are 2 heads of keys and values.
TEST(SplitTransformer, LlamaWithFewerKeysThanRanksEqualsThePlainModel) {
  for (const int ranks : {2, 4})
    for (const bool sequence : {false, true})
      compare({.config = tiny_llama(),
               .ranks = ranks,
               .sequence = sequence,
               .ids = some_ids(3, 12, 40)});
}

TEST(SplitTransformer, OneHeadOfKeysAndOddSizesEqualThePlainModel) {
  TransformerConfig config = tiny_llama();
  config.kv_heads = 1;
  config.head_size = 6;
  config.mlp = 37;
  config.vocabulary = 43;
  config.vocabulary_multiple = 5;
  for (const bool tied : {false, true})
    for (const bool sequence : {false, true}) {
      config.tied_head = tied;
      compare({.config = config, .ranks = 4, .sequence = sequence, .ids = some_ids(2, 7, 43)});
    }
}

TEST(SplitTransformer, PackedDocumentsEqualThePlainModel) {
  at::Tensor places = torch::tensor({{0, 1, 2, 0, 1, 2, 3, 4, 0, 1}}).repeat({2, 1});
  for (auto* config : {&tiny_gpt2, &tiny_llama})
    for (const bool sequence : {false, true})
      compare({.config = config(),
               .ranks = 2,
               .sequence = sequence,
               .ids = torch::stack({some_ids(2, 10, 40), places}, 2)});
}

// The vocabulary of GPT-2 over 4: rows of 12,565 and 12,564.
TEST(SplitTransformer, VocabularyOf50257OverFourRanks) {
  TransformerConfig config = tiny_gpt2();
  config.vocabulary = 50257;
  config.layers = 1;
  compare({.config = config, .ranks = 4, .ids = some_ids(1, 4, 50257)});
}

std::string refusal(const TransformerConfig& config, int ranks) {
  TransformerOptions options;
  options.tensor.ranks = TensorRanks::on_paper(0, ranks);
  try {
    transformer(config, options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SplitTransformer, RefusesHeadsThatDoNotDivideWithTheNumbersThatDo) {
  TransformerConfig config = tiny_gpt2();
  config.heads = config.kv_heads = 20;
  EXPECT_THAT(refusal(config, 8), HasSubstr("over 8 tensor ranks, but over 1, 2, 4, 5, 10, 20"));
  // SmolLM2-135M's.
  config.style = TransformerConfig::Style::Llama;
  config.heads = 9;
  config.kv_heads = 3;
  EXPECT_THAT(refusal(config, 2), HasSubstr("heads = 9, kv_heads = 3"));
  EXPECT_THAT(refusal(config, 2), HasSubstr("over 2 tensor ranks, but over 1, 3, 9"));
  EXPECT_THAT(refusal(config, 4), HasSubstr("over 4 tensor ranks, but over 1, 3, 9"));
  EXPECT_EQ(refusal(config, 3), "no error");
  EXPECT_EQ(tensor_sizes(config, 8), (std::vector<int>{1, 3}));
}

}  // namespace
}  // namespace trestle::models
