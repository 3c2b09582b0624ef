#include "trestle/generate/generate.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <set>
#include <string_view>

#include "tests/models/config_in_style.h"
#include "trestle/base/error.h"
#include "trestle/device/device.h"
#include "trestle/device/virtual_device.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/token_loss.h"
#include "trestle/pipeline/pipeline.h"

namespace trestle::generate {
namespace {

using models::TransformerConfig;
using Style = TransformerConfig::Style;

TransformerConfig config_of(Style style) {
  return models::config_in_style(style, {.vocabulary = 50,
                                         .context = 24,
                                         .width = 32,
                                         .layers = 3,
                                         .heads = 4,
                                         .kv_heads = 4,
                                         .head_size = 8,
                                         .mlp = 64,
                                         .initial_deviation = 0.3});
}

class Generation : public testing::TestWithParam<Style> {
 protected:
  // Before the first backward of this process.
  static void SetUpTestSuite() { install_virtual_devices({.count = 3}); }

  TransformerConfig config = config_of(GetParam());
  nn::Layers net = models::transformer(config);
  LanguageModel model{net, config};
  const std::vector<std::int64_t> prompt = {3, 17, 42, 8};

  // The scores after each token by the whole model, without any cache.
  at::Tensor plain_scores(const std::vector<std::int64_t>& ids) const {
    const torch::NoGradGuard no_grad;
    return net.forward(torch::tensor(ids).unsqueeze(0)).squeeze(0);
  }
};

TEST_P(Generation, CachedScoresEqualTheWholeModels) {
  const std::vector<std::int64_t> ids = {3, 17, 42, 8, 0, 49, 5, 5, 11};
  const at::Tensor plain = plain_scores(ids);
  EXPECT_LT((model.all_scores(ids) - plain).abs().max().item<double>(), 1e-4);
  auto state = model.begin();
  const std::vector<std::vector<std::int64_t>> steps = {{3, 17, 42}, {8}, {0, 49, 5}, {5}, {11}};
  std::int64_t done = 0;
  for (const auto& step : steps) {
    const at::Tensor scores = model.extend(state, step);
    done += std::ssize(step);
    EXPECT_LT((scores - plain[done - 1]).abs().max().item<double>(), 1e-4) << done;
  }
  EXPECT_EQ(state.tokens(), 9);
}

TEST_P(Generation, GreedyTextIsThatOfTheWholeModel) {
  std::vector<std::int64_t> ids = prompt;
  for (int i = 0; i < 10; ++i) ids.push_back(plain_scores(ids)[-1].argmax().item<std::int64_t>());
  const Generated made = generate(model, prompt, {.most_tokens = 10});
  EXPECT_EQ(made.ids, std::vector<std::int64_t>(ids.begin() + 4, ids.end()));
  EXPECT_EQ(made.ended, Ended::Length);
  const Generated cut = generate(model, prompt, {.most_tokens = 10, .end_tokens = {ids[7]}});
  EXPECT_EQ(cut.ended, Ended::EndToken);
  const auto first = std::find(ids.begin() + 4, ids.end(), ids[7]);
  EXPECT_EQ(cut.ids, std::vector<std::int64_t>(ids.begin() + 4, first));
}

TEST_P(Generation, DrawsTheSameTextForTheSameSeedAlone) {
  const auto draw = [&](std::uint64_t seed, std::int64_t number) {
    return generate(model, prompt,
                    {.choice = {.temperature = 1, .seed = seed}, .text_number = number})
        .ids;
  };
  EXPECT_EQ(draw(1, 0), draw(1, 0));
  EXPECT_NE(draw(1, 0), draw(2, 0));
  EXPECT_NE(draw(1, 0), draw(1, 1));
}

TEST_P(Generation, EndsWhereTheContextIsFull) {
  const Generated made = generate(model, prompt, {.most_tokens = 1000});
  EXPECT_EQ(made.ended, Ended::Context);
  EXPECT_EQ(std::ssize(made.ids) + 4, config.context);
  EXPECT_THROW(generate(model, {}, {}), UsageError);
  EXPECT_THROW(generate(model, std::vector<std::int64_t>(24, 1), {}), UsageError);
  EXPECT_THROW(generate(model, {50}, {}), UsageError);
  EXPECT_THROW(generate(model, {-1}, {}), UsageError);
}

// The reference computes the scores of the last half of a context again, token by token.
TEST_P(Generation, SlidesBehindTheEndOfTheContext) {
  std::vector<std::int64_t> ids = prompt;
  std::int64_t seen_from = 0;
  for (int i = 0; i < 60; ++i) {
    if (std::ssize(ids) - seen_from > 24) seen_from = std::ssize(ids) - 12;
    const std::vector<std::int64_t> seen(ids.begin() + seen_from, ids.end());
    ids.push_back(plain_scores(seen)[-1].argmax().item<std::int64_t>());
  }
  const Generated made = generate(model, prompt, {.most_tokens = 60, .slide = true});
  EXPECT_EQ(made.ids, std::vector<std::int64_t>(ids.begin() + 4, ids.end()));
  EXPECT_EQ(made.ended, Ended::Length);
  // In a batch each prompt slides by itself.
  const auto batch = generate_batch(model, {{{5}}, {prompt}, {{1, 2, 3, 4, 5, 6, 7}}},
                                    {.most_tokens = 60, .slide = true});
  EXPECT_EQ(batch[1].ids, made.ids);
  EXPECT_EQ(batch[0].ids, generate(model, {5}, {.most_tokens = 60, .slide = true}).ids);
}

// They are ordinary tensors, although the model computed them without autograd's books.
TEST_P(Generation, ScoresMayBeChangedAndDifferentiated) {
  auto state = model.begin();
  for (at::Tensor scores : {model.extend(state, prompt), model.all_scores(prompt)}) {
    scores.div_(2);
    scores.requires_grad_();
    scores.square().sum().backward();
    EXPECT_TRUE(at::allclose(scores.grad(), 2 * scores.detach()));
  }
}

// One text is continued in two ways.
TEST_P(Generation, CopiesOfAStateAreIndependent) {
  const auto expect = [&](const at::Tensor& scores, const std::vector<std::int64_t>& ids) {
    EXPECT_LT((scores - plain_scores(ids)[-1]).abs().max().item<double>(), 1e-4);
  };
  auto one = model.begin();
  model.extend(one, {1, 2, 3});
  auto other = one;
  expect(model.extend(one, {4}), {1, 2, 3, 4});
  expect(model.extend(other, {5}), {1, 2, 3, 5});
  expect(model.extend(one, {6}), {1, 2, 3, 4, 6});
  expect(model.extend(other, {7}), {1, 2, 3, 5, 7});
}

// Counts the tokens that an embedding takes.
class EmbeddedTokens {
 public:
  EmbeddedTokens() {
    count = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& call)
                                       -> std::unique_ptr<at::ObserverContext> {
          if (std::string_view(call.name()) == "aten::embedding")
            count += call.inputs()[1].toTensor().numel();
          return nullptr;
        }).needsInputs(true));
  }
  ~EmbeddedTokens() { at::removeCallback(handle_); }
  EmbeddedTokens(const EmbeddedTokens&) = delete;
  EmbeddedTokens& operator=(const EmbeddedTokens&) = delete;
  static inline std::int64_t count = 0;

 private:
  at::CallbackHandle handle_;
};

TEST_P(Generation, TextsOfAGroupShareTheirBeginWithTheSameNumbers) {
  const std::vector<std::int64_t> begin = {3, 17, 42, 8, 8, 1, 30, 2, 9, 4, 4, 6, 20, 21, 22};
  const auto text = [&](std::size_t from, std::vector<std::int64_t> more) {
    LanguageModel::Continuation one{
        {begin.begin() + static_cast<std::ptrdiff_t>(from), begin.end()},
        static_cast<std::int64_t>(begin.size() - from)};
    one.ids.insert(one.ids.end(), more.begin(), more.end());
    return one;
  };
  // A long begin, a group of one text, one whose texts begin differently, one that fills the
  // context, and one that is scored from its second token on.
  const std::vector<std::vector<LanguageModel::Continuation>> groups = {
      {text(0, {5}), text(0, {5, 6, 7}), text(0, {49, 1, 2, 3, 4})},
      {text(4, {7, 7})},
      {text(3, {1, 2}), text(5, {1, 2, 3})},
      {},
      {text(0, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), text(0, {1})},
      {{.ids = {2, 3}, .first = 1}, {.ids = {2, 3, 4, 5}, .first = 1}}};
  std::vector<LanguageModel::Continuation> texts;
  for (const auto& group : groups) texts.insert(texts.end(), group.begin(), group.end());
  const auto expected = model.log_probabilities(texts);
  const auto actual = model.log_probabilities_of_groups(groups);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(actual[i].size(), expected[i].size()) << i;
    for (std::size_t j = 0; j < expected[i].size(); ++j)
      EXPECT_NEAR(actual[i][j], expected[i][j], 1e-4) << i << " " << j;
  }
  EXPECT_TRUE(model.log_probabilities_of_groups({}).empty());

  const EmbeddedTokens counted;
  model.log_probabilities_of_groups({groups[0]});
  // 14 of the begin once, and for each text its rest with the begin's last token, padded to 5; the
  // learned positions are embedded too.
  const std::int64_t tables = GetParam() == Style::Gpt2 ? 2 : 1;
  EXPECT_LE(EmbeddedTokens::count, tables * (14 + 3 * 5));
  EXPECT_GE(EmbeddedTokens::count, 14 + 3 * 5);
}

// Whichever operator fails, the state keeps its tokens: the same call with more memory gives the
// scores of the whole model.
TEST_P(Generation, AStepThatFailsMayBeRepeated) {
  nn::Layers placed = models::transformer(config);
  const Device device = virtual_devices(1, 64 << 20).at(0);
  const nn::Graph graph = placed.graph();
  for (const nn::Layer& layer : graph.layers) layer.to(device.torch);
  const LanguageModel writer(placed, config);
  const std::vector<std::int64_t> more = {5, 9, 2, 7};
  std::vector<std::int64_t> all = prompt;
  all.insert(all.end(), more.begin(), more.end());
  const at::Tensor expected = plain_scores(all)[-1];
  int failed = 0;
  for (const bool first : {true, false})
    for (Bytes spare = 0; spare < (Bytes{256} << 10); spare += 2048) {
      auto state = writer.begin();
      if (!first) writer.extend(state, prompt);
      const std::vector<std::int64_t>& step = first ? all : more;
      set_budget(device.torch, memory_usage(device.torch).current + spare);
      bool done = false;
      try {
        writer.extend(state, step);
        done = true;
      } catch (const c10::OutOfMemoryError&) {
        ++failed;
      }
      set_budget(device.torch, 64 << 20);
      if (done) break;
      EXPECT_EQ(state.tokens(), first ? 0 : std::ssize(prompt));
      EXPECT_TRUE(at::allclose(writer.extend(state, step), expected, 1e-4, 1e-4)) << spare;
    }
  EXPECT_GT(failed, 4);
}

TEST_P(Generation, AdaptersWriteWithoutDropoutInEachMode) {
  const bool gpt2 = GetParam() == Style::Gpt2;
  nn::Layers tuned = models::transformer(
      config, {.adapters = {.rank = 2,
                            .alpha = 8,
                            .dropout = 0.5,
                            .targets = {gpt2 ? std::string("c_attn") : std::string("q_proj")}}});
  {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, parameter] : tuned.named_parameters())
      if (name.ends_with(".b")) parameter.fill_(0.3);
  }
  const LanguageModel writer(tuned, config);
  const at::Tensor in_training = writer.all_scores(prompt);
  tuned.eval();
  EXPECT_TRUE(at::equal(writer.all_scores(prompt), in_training));
}

TEST_P(Generation, RefusesStatesAndConfigsOfOtherModels) {
  std::optional<LanguageModel> gone(std::in_place, net, config);
  auto left = gone->begin();
  gone->extend(left, prompt);
  gone.reset();
  gone.emplace(net, config);  // at the same address
  EXPECT_THROW(gone->extend(left, {4}), UsageError);
  auto fresh = model.begin();
  EXPECT_THROW(model.keep(fresh, {0}), UsageError);

  TransformerConfig small = config;
  small.layers = 1;
  const LanguageModel other(models::transformer(small), small);
  auto state = model.begin();
  model.extend(state, {1, 2});
  EXPECT_THROW(other.extend(state, {3}), UsageError);
  LanguageModel::State none;
  EXPECT_THROW(model.extend(none, {3}), UsageError);
  for (const auto change : {&TransformerConfig::vocabulary, &TransformerConfig::heads}) {
    TransformerConfig wrong = config;
    wrong.*change *= 2;
    EXPECT_THROW(LanguageModel(net, wrong), UsageError);
  }
  GenerateOptions options;
  options.tokens = -1;
  EXPECT_THROW(generate(model, prompt, options), UsageError);
  options = {.most_tokens = -5};
  EXPECT_THROW(generate(model, prompt, options), UsageError);
}

// A pipeline's stages have copies of a tied head, which a step of the caller leaves behind.
TEST(TiedGeneration, ReadsTheHeadAfterTheLastStep) {
  TransformerConfig config = config_of(Style::Gpt2);
  nn::Layers net = models::transformer(config);
  const LanguageModel model(net, config);
  Pipeline pipeline(net, {.devices = virtual_devices(2), .balance = {3, 3}});
  const LanguageModel later(net, config);
  torch::optim::SGD optimizer(pipeline.parameters(), torch::optim::SGDOptions(1.0));
  const at::Tensor ids = torch::randint(0, 50, {2, 8});
  pipeline.step(ids, ids, nn::token_cross_entropy());
  optimizer.step();
  nn::Layers fresh = models::transformer(config);
  const torch::NoGradGuard no_grad;
  const auto trained = net.named_parameters();
  for (auto& [name, tensor] : fresh.named_parameters())
    for (const auto& [own, value] : trained)
      if (own == name) tensor.copy_(value.cpu());
  const at::Tensor expected = fresh.forward(torch::tensor({{1, 2, 3}}))[0];
  for (const LanguageModel* one : {&model, &later})
    EXPECT_LT((one->all_scores({1, 2, 3}) - expected).abs().max().item<double>(), 1e-4);
}

TEST_P(Generation, StopsWhereTheCallerSays) {
  int seen = 0;
  const Generated made =
      generate(model, prompt, {.on_token = [&](std::size_t, std::int64_t) { return ++seen < 3; }});
  EXPECT_EQ(made.ended, Ended::Stopped);
  EXPECT_EQ(made.ids.size(), 3U);
}

TEST_P(Generation, LayersOnSeveralDevicesWriteTheSameText) {
  TransformerConfig untied = config;  // a tied table is on one device
  untied.tied_head = false;
  const LanguageModel one(models::transformer(untied), untied);
  const Generated whole = generate(one, prompt, {.most_tokens = 12});
  const std::vector<Device> devices = virtual_devices(2, 64 << 20);
  nn::Layers other = models::transformer(untied);
  const nn::Graph graph = other.graph();
  for (std::size_t i = 0; i < graph.layers.size(); ++i)
    graph.layers[i].to(devices[i < 2 ? 0 : 1].torch);
  const LanguageModel divided(other, untied);
  EXPECT_EQ(generate(divided, prompt, {.most_tokens = 12}).ids, whole.ids);
  const std::vector<Generated> both = generate_batch(
      divided, {{{9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}}, {prompt}}, {.most_tokens = 12});
  EXPECT_EQ(both[1].ids, whole.ids);
  EXPECT_EQ(both[0].ended, Ended::Context);
}

// Lengths 1 to 23 of a context of 24: the last one is full after one token.
std::vector<Prompt> unequal_prompts() {
  std::vector<Prompt> prompts = {
      {{7}}, {{3, 17, 42, 8}}, {{11, 2, 30, 30, 5, 9, 1, 44, 20}}, {{3}}};
  Prompt longest;
  for (std::int64_t i = 0; i < 23; ++i) longest.ids.push_back(i * 7 % 50);
  prompts.insert(prompts.begin() + 2, longest);
  return prompts;
}

TEST_P(Generation, TextsOfABatchHaveTheScoresOfTheWholeModel) {
  std::vector<std::vector<std::int64_t>> texts;
  for (const Prompt& prompt : unequal_prompts()) texts.push_back(prompt.ids);
  texts.erase(texts.begin() + 2);  // has no room for more tokens
  auto state = model.begin();
  const auto compare = [&](const at::Tensor& scores) {
    ASSERT_EQ(scores.size(0), std::ssize(texts));
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      EXPECT_EQ(state.tokens(row), std::ssize(texts[i]));
      EXPECT_LT((scores[row] - plain_scores(texts[i])[-1]).abs().max().item<double>(), 1e-4) << i;
    }
  };
  const auto extend = [&](const std::vector<std::vector<std::int64_t>>& more) {
    for (std::size_t i = 0; i < more.size(); ++i)
      texts[i].insert(texts[i].end(), more[i].begin(), more[i].end());
    compare(model.extend_batch(state, more));
  };
  compare(model.extend_batch(state, texts));
  extend({{1}, {2}, {3}, {4}});
  extend({{5, 6}, {7, 8}, {9, 10}, {11, 12}});
  model.keep(state, {3, 1});  // without the longest one: less padding, and another order
  texts = {texts[3], texts[1]};
  extend({{13}, {14}});
  extend({{15, 16, 17}, {18, 19, 20}});
  EXPECT_THROW(model.extend_batch(state, {{1}}), UsageError);
  EXPECT_THROW(model.extend_batch(state, {{1}, {1, 2}}), UsageError);
  EXPECT_THROW(model.keep(state, {2}), UsageError);
}

TEST_P(Generation, PromptsOfABatchGiveTheTextsThatTheyGiveAlone) {
  std::vector<Prompt> prompts = unequal_prompts();
  for (std::size_t i = 0; i < prompts.size(); ++i) prompts[i].text_number = 10 * i;
  for (const double temperature : {0.0, 1.0}) {
    GenerateOptions options{.choice = {.temperature = temperature, .seed = 3}};
    const Generated first = generate(model, prompts[0].ids, options);
    options.end_tokens = {first.ids[2]};  // some texts end early
    std::set<std::string> reasons;
    std::vector<std::size_t> ended;
    const std::vector<Generated> all =
        generate_batch(model, prompts, options,
                       [&](std::size_t text, const Generated&) { ended.push_back(text); });
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      options.text_number = prompts[i].text_number;
      const Generated alone = generate(model, prompts[i].ids, options);
      EXPECT_EQ(all[i].ids, alone.ids) << temperature << " " << i;
      EXPECT_EQ(all[i].ended, alone.ended) << temperature << " " << i;
      reasons.insert(to_word(alone.ended));
    }
    EXPECT_EQ(reasons, (std::set<std::string>{"context", "end token"}));
    EXPECT_EQ(std::set<std::size_t>(ended.begin(), ended.end()).size(), prompts.size());
    EXPECT_EQ(ended.size(), prompts.size());
    EXPECT_LE(all[2].ids.size(), 1U) << "its context is full after one token";
  }
}

TEST_P(Generation, RefusesAPromptOfABatchByItsNumber) {
  const auto refused = [&](const std::vector<Prompt>& prompts, const std::string& why) {
    try {
      generate_batch(model, prompts, {});
      ADD_FAILURE() << why;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refused({{{1}}, {{}}, {{2}}}, "prompt 2 of 3 has no token");
  refused({{{1}}, {std::vector<std::int64_t>(24, 1)}}, "prompt 2 of 2 has 24 tokens");
  refused({{{50}}, {{1}}}, "prompt 1 of 2 has the token id 50");
  refused({}, "no prompt");
}

INSTANTIATE_TEST_SUITE_P(Styles, Generation, testing::Values(Style::Gpt2, Style::Llama));

TEST(ChooseToken, KeepsTheOrderAndTheLimitsOfTheOptions) {
  const at::Tensor scores = torch::tensor({1.0F, 3.0F, 2.0F, 3.0F, -1.0F});
  EXPECT_EQ(choose_token(scores, {}, 0, 5, {}), 1);
  EXPECT_EQ(choose_token(scores, {1, 3}, 0, 5, {.repetition_penalty = 2}), 2);
  EXPECT_EQ(choose_token(scores, {}, 0, 1, {}), 0) << "padded rows are never chosen";
  EXPECT_THROW(choose_token(scores, {1, -1}, 0, 5, {.repetition_penalty = 2}), UsageError);
  for (std::int64_t number = 0; number < 50; ++number) {
    const auto top2 = choose_token(scores, {}, number, 5, {.temperature = 5, .top_k = 2});
    EXPECT_TRUE(top2 == 1 || top2 == 3);
    EXPECT_EQ(choose_token(scores, {}, number, 5, {.temperature = 1, .top_p = 0.01}), 1);
  }
}

// The share of each token over many texts is its probability.
TEST(ChooseToken, DrawsByProbability) {
  const at::Tensor scores = torch::tensor({0.0F, 1.0F, 2.0F, 0.5F});
  const at::Tensor expected = torch::softmax(scores / 0.7, 0);
  std::vector<double> counts(4);
  constexpr int draws = 20000;
  for (int i = 0; i < draws; ++i)
    counts[static_cast<std::size_t>(choose_token(scores, {1, 2}, i, 4, {.temperature = 0.7}))] += 1;
  for (int id = 0; id < 4; ++id)
    EXPECT_NEAR(counts[static_cast<std::size_t>(id)] / draws, expected[id].item<double>(), 0.015);
}

TEST(ChooseToken, RefusesOtherScores) {
  EXPECT_THROW(choose_token(torch::zeros({4}), {}, 0, 0, {}), UsageError);
  EXPECT_THROW(choose_token(torch::zeros({4}), {}, 0, -1, {}), UsageError);
  EXPECT_THROW(choose_token(torch::zeros({0}), {}, 0, 4, {}), UsageError);
  EXPECT_THROW(choose_token(torch::zeros({4}, at::kDouble), {}, 0, 4, {}), UsageError);
  EXPECT_THROW(choose_token(torch::zeros({1, 4}), {}, 0, 4, {}), UsageError);
}

TEST(ChooseToken, RefusesNumbersOutOfRange) {
  EXPECT_THROW(check_choice({.temperature = -1}), UsageError);
  EXPECT_THROW(check_choice({.top_k = -1}), UsageError);
  EXPECT_THROW(check_choice({.top_p = 0}), UsageError);
  EXPECT_THROW(check_choice({.repetition_penalty = 0}), UsageError);
  EXPECT_THROW(choose_token(torch::tensor({1.0F, NAN}), {}, 0, 2, {}), FormatError);
}

}  // namespace
}  // namespace trestle::generate
