// Texts of models whose layers tensor ranks split, and how close the choice of a token was.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/models/config_in_style.h"
#include "trestle/base/error.h"
#include "trestle/comm/rank_error.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/generate/generate.h"
#include "trestle/models/transformer/transformer.h"

namespace trestle::generate {
namespace {

using models::TransformerConfig;
using ::testing::HasSubstr;
using Style = TransformerConfig::Style;

// Scores that differ so much that rounding does not change a choice.
TransformerConfig split_config(Style style) {
  return models::config_in_style(style, {.vocabulary = 51,
                                         .context = 24,
                                         .width = 32,
                                         .layers = 3,
                                         .heads = 4,
                                         .kv_heads = 4,
                                         .head_size = 8,
                                         .mlp = 64,
                                         .initial_deviation = 0.3});
}

const std::vector<Prompt> prompts = {{{3, 17, 42, 8}}, {{5}}, {{3, 17, 42, 8}, 1}, {{9, 9, 1}}};

class TensorGeneration : public testing::TestWithParam<Style> {
 protected:
  using Options = std::function<GenerateOptions(int rank)>;
  std::vector<Generated> plain(const GenerateOptions& options) const {
    return generate_batch(LanguageModel(models::transformer(config), config), prompts, options);
  }
  // The results of all ranks.
  std::vector<std::vector<Generated>> over(int ranks, const Options& options,
                                           bool sequence = false) const {
    return spawn(ranks, [&](World& world) {
      const tensor_parallel::TensorRanks tensor(world.group());
      const nn::Layers net =
          models::transformer(config, {.tensor = {.ranks = tensor, .sequence = sequence}});
      return generate_batch(LanguageModel(net, config), prompts, options(world.rank()));
    });
  }
  static void expect_equal(const std::vector<Generated>& expected,
                           const std::vector<Generated>& actual) {
    ASSERT_EQ(expected.size(), actual.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(expected[i].ids, actual[i].ids) << i;
      EXPECT_EQ(to_word(expected[i].ended), to_word(actual[i].ended)) << i;
      EXPECT_NEAR(expected[i].smallest_gap, actual[i].smallest_gap, 1e-4) << i;
      EXPECT_EQ(expected[i].smallest_gap_at, actual[i].smallest_gap_at) << i;
    }
  }

  TransformerConfig config = split_config(GetParam());
};

TEST_P(TensorGeneration, RanksWriteTheTextsOfOneProcess) {
  const std::vector<GenerateOptions> ways = {
      {.most_tokens = 12},
      {.choice = {.temperature = 1.3, .seed = 4}, .most_tokens = 30, .slide = true},
      {.choice = {.temperature = 2, .top_k = 9, .top_p = 0.8, .repetition_penalty = 1.2, .seed = 1},
       .most_tokens = 20,
       .end_tokens = {2, 4, 6, 8, 10},
       .tokens = 40}};
  for (GenerateOptions options : ways) {
    std::vector<Generated> expected;
    double closest = 0;  // rounding may change a text whose gap is below 1e-4
    for (; closest < 2e-4 && options.choice.seed < 50; ++options.choice.seed) {
      expected = plain(options);
      closest = std::ranges::min(expected, {}, &Generated::smallest_gap).smallest_gap;
    }
    --options.choice.seed;
    ASSERT_GE(closest, 2e-4);
    std::set<std::int64_t> different;
    for (const Generated& one : expected) different.insert(one.ids.begin(), one.ids.end());
    EXPECT_GE(different.size(), 5U);
    for (const int ranks : {1, 2, 4})
      for (const auto& of_rank : over(ranks, [&](int) { return options; })) {
        SCOPED_TRACE(ranks);
        expect_equal(expected, of_rank);
      }
  }
}

TEST_P(TensorGeneration, ModelsWithShardsOfTheTokensWriteToo) {
  const GenerateOptions options{.choice = {.temperature = 1, .seed = 2}, .most_tokens = 8};
  for (const auto& of_rank : over(
           2, [&](int) { return options; }, true))
    expect_equal(plain(options), of_rank);
}

// The seed, the end tokens and the choice of other ranks do not count.
TEST_P(TensorGeneration, RankZeroDecides) {
  const GenerateOptions options{.choice = {.temperature = 1, .seed = 2}, .most_tokens = 8};
  GenerateOptions other = options;
  other.choice = {.seed = 3};
  for (std::int64_t id = 0; id < 51; ++id) other.end_tokens.push_back(id);
  other.on_token = [](std::size_t, std::int64_t) { return false; };
  for (const auto& of_rank : over(2, [&](int rank) { return rank == 0 ? options : other; }))
    expect_equal(plain(options), of_rank);
}

TEST_P(TensorGeneration, AStopOnAnyRankEndsTheTextsOnAllAtOneToken) {
  const auto results = over(4, [](int rank) {
    GenerateOptions options{.most_tokens = 20};
    if (rank == 2) options.stop = [steps = std::make_shared<int>(0)] { return ++*steps == 5; };
    return options;
  });
  for (const auto& of_rank : results)
    for (const Generated& one : of_rank) {
      EXPECT_EQ(one.ids.size(), 5U);
      EXPECT_EQ(to_word(one.ended), "stopped");
    }
}

TEST_P(TensorGeneration, CallbacksOfRankZeroEndATextOnAllRanks) {
  std::mutex guard;
  std::vector<std::int64_t> called(2);
  const auto results = over(2, [&](int rank) {
    GenerateOptions options{.most_tokens = 6};
    options.on_token = [&, rank](std::size_t text, std::int64_t) {
      const std::scoped_lock lock(guard);
      ++called[static_cast<std::size_t>(rank)];
      return text != 1;
    };
    return options;
  });
  for (const auto& of_rank : results) {
    EXPECT_EQ(of_rank[1].ids.size(), 1U);
    EXPECT_EQ(of_rank[0].ids.size(), 6U);
  }
  EXPECT_EQ(called, (std::vector<std::int64_t>{3 * 6 + 1, 3 * 6 + 1}));
}

TEST_P(TensorGeneration, RanksWithOtherTextsAreRefused) {
  const auto message = [&](const Options& options) -> std::string {
    try {
      over(2, options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message([](int rank) { return GenerateOptions{.most_tokens = 4 + rank}; }),
              HasSubstr("the tensor ranks write different texts: 'at most 4 tokens"));
  EXPECT_THAT(message([](int rank) { return GenerateOptions{.slide = rank == 1}; }),
              HasSubstr("without sliding' on tensor rank 0"));
}

TEST_P(TensorGeneration, AnErrorOnTheRankThatChoosesEndsAllRanks) {
  EXPECT_THROW(over(4,
                    [](int rank) {
                      GenerateOptions options{.most_tokens = 9};
                      if (rank == 0)
                        options.on_token = [](std::size_t, std::int64_t) -> bool {
                          throw FormatError("the printer is empty");
                        };
                      return options;
                    }),
               FormatError);
}

INSTANTIATE_TEST_SUITE_P(Styles, TensorGeneration, testing::Values(Style::Gpt2, Style::Llama));

// Rank 0 waits for the reader of the texts, and sends a message before the deadline ends.
class TensorGenerationReader : public testing::Test {
 protected:
  static std::vector<Generated> on_ranks(std::chrono::milliseconds deadline,
                                         const std::function<GenerateOptions(int)>& options) {
    const TransformerConfig config = split_config(Style::Gpt2);
    return spawn(2,
                 [&](World& world) {
                   const tensor_parallel::TensorRanks ranks(world.group());
                   const nn::Layers net = models::transformer(config, {.tensor = {.ranks = ranks}});
                   return generate(LanguageModel(net, config), {5, 17}, options(world.rank()));
                 },
                 {.deadline = deadline});
  }
};

TEST_F(TensorGenerationReader, RanksWaitLongerThanTheirDeadline) {
  using namespace std::chrono_literals;
  const TransformerConfig config = split_config(Style::Gpt2);
  const GenerateOptions plain{.most_tokens = 3};
  const auto expected =
      generate(LanguageModel(models::transformer(config), config), {5, 17}, plain).ids;
  const auto results = on_ranks(2s, [&](int rank) {
    GenerateOptions options = plain;
    if (rank == 0)
      options.ready = [calls = std::make_shared<int>(0)] {
        if (++*calls < 2 || *calls > 7) return true;
        std::this_thread::sleep_for(500ms);
        return false;
      };
    return options;
  });
  for (const Generated& one : results) EXPECT_EQ(one.ids, expected);
}

TEST_F(TensorGenerationReader, AStopOfAnotherRankEndsTheWait) {
  const auto results = on_ranks(std::chrono::minutes(1), [](int rank) {
    GenerateOptions options{.most_tokens = 9};
    if (rank == 0) options.ready = [] { return false; };
    if (rank == 1) options.stop = [steps = std::make_shared<int>(0)] { return ++*steps == 4; };
    return options;
  });
  for (const Generated& one : results) {
    EXPECT_EQ(one.ids.size(), 1U);
    EXPECT_EQ(to_word(one.ended), "stopped");
  }
}

// A rank on paper computes alone; its texts have no meaning.
TEST(TensorGenerationOnPaper, WritesOnOneRank) {
  const TransformerConfig config = split_config(Style::Llama);
  const auto ranks = tensor_parallel::TensorRanks::on_paper(1, 2);
  const LanguageModel model(models::transformer(config, {.tensor = {.ranks = ranks}}), config);
  EXPECT_EQ(generate(model, {1, 2}, {.most_tokens = 3}).ids.size(), 3U);
  EXPECT_EQ(model.ranks().size(), 2);
}

class Gaps : public testing::Test {
 protected:
  static at::Tensor moved(const at::Tensor& scores, const at::Tensor& by) {
    return (scores.to(at::kDouble) + by).to(at::kFloat);
  }
  // fp32 rounds the moved scores.
  static constexpr double rounding = 1e-5;
};

TEST_F(Gaps, LargestScoreHasTheDistanceToTheSecond) {
  const at::Tensor scores = torch::tensor({1.0F, 4.0F, 3.25F, -9.0F, 8.0F});
  EXPECT_EQ(choose_with_gap(scores, {}, 0, 5, {}).gap, 4);
  EXPECT_EQ(choose_with_gap(scores, {}, 0, 4, {}).gap, 0.75) << "without the padded row";
  EXPECT_EQ(choose_with_gap(scores, {1}, 0, 4, {.repetition_penalty = 2}).gap, 1.25);
  EXPECT_EQ(choose_with_gap(torch::tensor({2.0F, 2.0F}), {}, 0, 2, {}).gap, 0);
  EXPECT_TRUE(std::isinf(choose_with_gap(scores, {}, 0, 1, {}).gap));
  EXPECT_TRUE(std::isinf(choose_with_gap(scores, {}, 0, 1, {.temperature = 1}).gap));
  EXPECT_EQ(choose_with_gap(scores, {}, 0, 4, {.temperature = 1, .top_k = 1}).gap, 0.75);
}

// No change of the scores below half of the gap changes the choice.
TEST_F(Gaps, SmallerChangesOfScoresKeepTheChoice) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  const std::vector<ChoiceOptions> ways = {{},
                                           {.temperature = 0.7},
                                           {.temperature = 3},
                                           {.temperature = 1, .top_k = 6},
                                           {.temperature = 2, .top_p = 0.7},
                                           {.temperature = 1.5, .top_k = 12, .top_p = 0.9}};
  int small = 0;
  for (const ChoiceOptions& options : ways)
    for (std::int64_t text = 0; text < 60; ++text) {
      const at::Tensor scores = torch::randn({20}, generator, at::kFloat);
      const auto [id, gap] = choose_with_gap(scores, {1}, text, 20, options);
      ASSERT_TRUE(std::isfinite(gap));
      ASSERT_GE(gap, 0);
      small += gap < 0.2 ? 1 : 0;
      for (int i = 0; i < 30; ++i) {
        // Each score moves by the whole allowed distance, or by a random part of it.
        const at::Tensor part = torch::rand({20}, generator, at::kDouble) * 2 - 1;
        const at::Tensor by = (i % 2 == 0 ? part.sign() : part) * std::max(0.0, gap / 2 - rounding);
        EXPECT_EQ(choose_token(moved(scores, by), {1}, text, 20, options), id)
            << options.temperature << " " << options.top_k << " " << options.top_p << " " << text;
      }
    }
  EXPECT_GT(small, 100);
}

// The gap is no smaller than it must be: a change of a little more than half of it, down on one
// side of a border and up on the other, is another choice.
TEST_F(Gaps, LargerChangesOfScoresChangeTheChoice) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  for (const double temperature : {0.0, 0.5, 2.0})
    for (std::int64_t text = 0; text < 60; ++text) {
      const at::Tensor scores = torch::randn({12}, generator, at::kFloat);
      const auto [id, gap] = choose_with_gap(scores, {}, text, 12, {.temperature = temperature});
      const double by = gap / 2 + rounding;
      bool changes = false;
      for (const std::int64_t border : {id, id + 1})
        for (const double sign : {by, -by}) {
          at::Tensor change = at::full({12}, -sign, at::kDouble);
          change.narrow(0, 0, border).fill_(sign);
          if (temperature == 0) change.fill_(by)[id] = -by;
          changes = changes || choose_token(moved(scores, change), {}, text, 12,
                                            {.temperature = temperature}) != id;
        }
      EXPECT_TRUE(changes) << temperature << " " << text;
    }
}

}  // namespace
}  // namespace trestle::generate
