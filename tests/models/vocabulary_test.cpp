#include "trestle/models/transformer/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "tests/models/tiny_transformers.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/transformer/public_weights.h"
#include "trestle/models/transformer/read_config.h"
#include "trestle/nn/token_loss.h"
#include "trestle/optim/factory.h"

namespace trestle::models {
namespace {

using support::message_of;
using testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

TransformerConfig padded(TransformerConfig config) {
  config.vocabulary_multiple = 32;  // 40 tokens, 64 rows
  return config;
}

at::Tensor some_ids(std::int64_t rows, std::int64_t count) {
  return (torch::arange(rows * count) * 37 % 40).view({rows, count});
}

Tensors by_name(const NamedTensors& named) { return {named.begin(), named.end()}; }

class Vocabulary : public testing::TestWithParam<TransformerConfig (*)()> {
 protected:
  const TransformerConfig config_ = GetParam()();
};

// The loss with label smoothing takes the score of every token: that of a padded row would show.
TEST_P(Vocabulary, PaddedRowsChangeNeitherLossNorGradients) {
  const nn::Layers plain = transformer(config_), more = transformer(padded(config_));
  const at::Tensor ids = some_ids(2, 12), next = some_ids(2, 13).narrow(1, 1, 12);
  Tensors scores, losses;
  for (const auto& [name, net] : {std::pair{"plain", plain}, {"more", more}}) {
    scores[name] = net.forward(ids);
    losses[name] = torch::nn::functional::cross_entropy(
        scores[name].flatten(0, 1), next.flatten(),
        torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(0.1));
    losses[name].backward();
  }
  ASSERT_EQ(scores["more"].sizes(), (std::vector<std::int64_t>{2, 12, 40}));
  EXPECT_TRUE(at::allclose(scores["plain"], scores["more"], 1e-5, 1e-7));
  EXPECT_TRUE(at::allclose(losses["plain"], losses["more"], 1e-6, 0));
  const Tensors wide = by_name(more.named_parameters());
  for (const auto& [name, parameter] : plain.named_parameters()) {
    at::Tensor gradient = wide.at(name).grad();
    if (is_vocabulary_table(name)) {
      ASSERT_EQ(gradient.size(0), 64);
      EXPECT_EQ(gradient.narrow(0, 40, 24).abs().max().item<float>(), 0) << name;
      gradient = gradient.narrow(0, 0, 40);
    }
    EXPECT_GT(parameter.grad().abs().max().item<float>(), 0) << name;
    EXPECT_TRUE(at::allclose(parameter.grad(), gradient, 1e-4, 1e-7)) << name;
  }
}

TEST_P(Vocabulary, PaddedRowsAreZerosAndStaySo) {
  for (const InitialWeights weights : {InitialWeights::Drawn, InitialWeights::Unset}) {
    const nn::Layers net = transformer(padded(config_), {.weights = weights});
    if (weights == InitialWeights::Drawn) {
      const Tensors plain = by_name(transformer(config_).named_parameters());
      for (const auto& [name, view] : first_rows(net.named_parameters(), 40))
        EXPECT_TRUE(at::equal(view, plain.at(name))) << name;
      const auto adamw = optim::make_optimizer(
          net.parameters(), {.name = "adamw", .learning_rate = 0.1, .weight_decay = 0.1});
      for (int step = 0; step < 3; ++step) {
        adamw->zero_grad();
        nn::token_cross_entropy().value(net.forward(some_ids(2, 8)), some_ids(2, 8)).backward();
        adamw->step();
      }
      EXPECT_GT((by_name(net.named_parameters()).at("embed.tokens").narrow(0, 0, 40) -
                 plain.at("embed.tokens"))
                    .abs()
                    .max()
                    .item<float>(),
                0.1);
    }
    for (const auto& [name, parameter] : net.named_parameters()) {
      if (!is_vocabulary_table(name)) continue;
      EXPECT_EQ(parameter.narrow(0, 40, 24).abs().max().item<float>(), 0) << name;
    }
  }
}

TEST_P(Vocabulary, IdsOfPaddedRowsAreNamed) {
  const nn::Layers net = transformer(padded(config_));
  at::Tensor ids = some_ids(2, 5);
  const at::Tensor scores = net.forward(ids);
  ids[1][3] = 40;
  EXPECT_THAT(message_of([&] { net.forward(ids); }),
              HasSubstr("token id 40 in row 1, column 3 is out of range: the model has the ids 0 "
                        "to 39"));
  EXPECT_THAT(message_of([&] { nn::token_cross_entropy().value(scores, ids); }),
              HasSubstr("target 40 in row 1, column 3 is out of range"));
}

TEST_P(Vocabulary, PublicViewsAndCountsHaveNoPaddedRows) {
  const nn::Layers net = transformer(padded(config_));
  int tables = 0;
  for (const auto& [name, view] :
       public_views(padded(config_), PublicNames::HuggingFace, net.named_parameters()))
    if (view.dim() == 2 && view.size(0) == 40) ++tables;
  EXPECT_EQ(tables, config_.tied_head ? 1 : 2);
  EXPECT_EQ(parameter_count(padded(config_)), net.parameter_count());
  EXPECT_EQ(to_config_json(padded(config_)), to_config_json(config_));
}

TEST_P(Vocabulary, GrowsEmbeddingAndHeadTogether) {
  const nn::Layers net = transformer(config_, {.seed = 3});
  const at::Tensor ids = some_ids(2, 9);
  for (const TransformerConfig& from : {config_, padded(config_)}) {
    const nn::Layers old = transformer(from, {.seed = 3});
    const GrownTransformer grown = grow_vocabulary(old, from, 43);
    EXPECT_EQ(grown.config.vocabulary, 43);
    EXPECT_EQ(grown.layers.named_parameters().size(), net.named_parameters().size());
    const Tensors larger = by_name(grown.layers.named_parameters());
    for (const auto& [name, parameter] : net.named_parameters()) {
      const at::Tensor now = larger.at(name);
      if (!is_vocabulary_table(name)) {
        EXPECT_TRUE(at::equal(now, parameter)) << name;
        continue;
      }
      ASSERT_EQ(now.size(0), table_rows(grown.config));
      EXPECT_TRUE(at::equal(now.narrow(0, 0, 40), parameter)) << name;
      for (std::int64_t row = 40; row < 43; ++row)
        EXPECT_TRUE(at::allclose(now[row], parameter.mean(0), 1e-5, 1e-8)) << name;
      EXPECT_TRUE(at::equal(now[40], now[42])) << name;
      EXPECT_EQ(now.narrow(0, 43, now.size(0) - 43).abs().sum().item<float>(), 0) << name;
    }
    // A new token's score is the mean of the old ones.
    const at::Tensor before = net.forward(ids), after = grown.layers.forward(ids);
    ASSERT_EQ(after.size(2), 43);
    EXPECT_TRUE(at::allclose(after.narrow(2, 0, 40), before, 1e-5, 1e-7));
    EXPECT_TRUE(at::allclose(after.select(2, 41), before.mean(2), 1e-4, 1e-6));
    at::Tensor with_new = ids.clone();
    with_new[0][2] = 42;
    EXPECT_TRUE(grown.layers.forward(with_new).isfinite().all().item<bool>());
  }
}

// One row is trained through both ends where the head is tied, as in torch.
TEST_P(Vocabulary, RowsOfNewTokensAreTrained) {
  const GrownTransformer grown = grow_vocabulary(transformer(config_), config_, 42);
  at::Tensor ids = some_ids(1, 6);
  ids[0][3] = 41;
  nn::token_cross_entropy().value(grown.layers.forward(ids), ids).backward();
  const Tensors named = by_name(grown.layers.named_parameters());
  EXPECT_EQ(named.contains("head.weight"), !config_.tied_head);
  for (const auto& [name, parameter] : named) {
    if (!is_vocabulary_table(name)) continue;
    EXPECT_GT(parameter.grad()[41].abs().max().item<float>(), 0) << name;
  }
}

TEST_P(Vocabulary, RefusesToShrinkAndToGrowBesideAdapters) {
  const nn::Layers net = transformer(config_);
  EXPECT_THAT(message_of([&] { grow_vocabulary(net, config_, 39); }),
              HasSubstr("rows of tokens are added, not removed"));
  EXPECT_THAT(message_of([&] {
                grow_vocabulary(net, config_, 41,
                                {.adapters = {.rank = 2, .targets = adapter_targets(config_)}});
              }),
              HasSubstr("adapters"));
  TransformerConfig other = config_;
  other.width = 32;
  other.head_size = 8;
  EXPECT_THAT(message_of([&] { grow_vocabulary(net, other, 41); }),
              HasSubstr("not that of the layers"));
  TransformerConfig turned = config_;  // with the same shapes
  turned.norm_epsilon *= 2;
  TransformerConfig smaller = config_;
  smaller.vocabulary -= 10;
  for (const TransformerConfig& wrong : {turned, smaller})
    EXPECT_THAT(message_of([&] { grow_vocabulary(net, wrong, 41); }),
                HasSubstr("not that of the layers"));
  EXPECT_THAT(message_of([&] { grow_vocabulary(net, config_, 41, {.type = torch::kBFloat16}); }),
              HasSubstr("is Float, and would be BFloat16"));
  for (const std::int64_t known : {0, 41})
    EXPECT_THROW(fill_new_rows(config_, net.named_parameters(), known), UsageError);
}

TEST(VocabularySizes, RowsAreAMultiple) {
  TransformerConfig config;
  EXPECT_EQ(table_rows(config), 50257);
  config.vocabulary_multiple = 64;
  EXPECT_EQ(table_rows(config), 50304);
  config.vocabulary = 50304;
  EXPECT_EQ(table_rows(config), 50304);
  config.vocabulary_multiple = 0;
  EXPECT_THAT(message_of([&] { transformer(config); }), HasSubstr("vocabulary_multiple = 0"));
}

INSTANTIATE_TEST_SUITE_P(Transformer, Vocabulary, testing::Values(tiny_gpt2, tiny_llama));

}  // namespace
}  // namespace trestle::models
