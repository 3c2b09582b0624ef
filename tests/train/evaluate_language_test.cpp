#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>

#include "tests/models/config_in_style.h"
#include "tests/support/message_of.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/tokens/tokenizers/bytes_tokenizer.h"
#include "trestle/train/language/evaluate_choices.h"
#include "trestle/train/language/evaluate_text.h"

// Perplexity and multiple choice against a GPT-2 and a Llama that are written out here in fp64, one
// text at a time.
namespace trestle::train {
namespace {

namespace fs = std::filesystem;
using models::TransformerConfig;
using support::message_of;
using ::testing::HasSubstr;
using Style = TransformerConfig::Style;

TransformerConfig config_of(Style style) {
  return models::config_in_style(style, {.vocabulary = 256,
                                         .context = 40,
                                         .width = 32,
                                         .layers = 2,
                                         .heads = 4,
                                         .kv_heads = 4,
                                         .head_size = 8,
                                         .mlp = 48,
                                         .initial_deviation = 0.25});
}

class PlainModel {
 public:
  explicit PlainModel(const nn::Layers& net) {
    for (const auto& [name, tensor] : net.named_parameters())
      weights_[name] = tensor.detach().to(torch::kDouble);
    llama_ = !weights_.contains("embed.positions");
  }

  // The log-probability of each of ids[first], ids[first + 1], ...: their sum.
  double sum(const std::vector<std::int64_t>& ids, std::int64_t first) const {
    const at::Tensor given = torch::tensor(std::vector<std::int64_t>(ids.begin(), ids.end() - 1));
    const at::Tensor all = torch::log_softmax(scores(given), -1);
    double sum = 0;
    for (std::int64_t i = first; i < std::ssize(ids); ++i)
      sum += all[i - 1][ids[static_cast<std::size_t>(i)]].item<double>();
    return sum;
  }

 private:
  at::Tensor of(const std::string& name) const { return weights_.at(name); }
  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    const at::Tensor y = x.mm(of(name + ".weight").t());
    return weights_.contains(name + ".bias") ? y + of(name + ".bias") : y;
  }
  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    if (llama_) return x / (x.pow(2).mean(-1, true) + 1e-5).sqrt() * of(name + ".weight");
    const at::Tensor centred = x - x.mean(-1, true);
    return centred / (centred.pow(2).mean(-1, true) + 1e-5).sqrt() * of(name + ".weight") +
           of(name + ".bias");
  }
  static at::Tensor turned(const at::Tensor& x) {  // one head [T, 8]
    const at::Tensor angle =
        torch::arange(x.size(0), torch::kDouble).unsqueeze(1) *
        torch::pow(10000.0, -torch::arange(0, 8, 2, torch::kDouble) / 8).unsqueeze(0);
    const at::Tensor a = x.slice(1, 0, 4), b = x.slice(1, 4, 8);
    return torch::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 1);
  }
  at::Tensor attention(const std::string& name, const at::Tensor& x) const {
    const at::Tensor rows = linear(name + ".qkv", x);
    const std::int64_t kv_heads = llama_ ? 2 : 4, count = x.size(0);
    std::vector<at::Tensor> heads;
    for (std::int64_t head = 0; head < 4; ++head) {
      const std::int64_t of_keys = 32 + 8 * (head * kv_heads / 4);
      at::Tensor q = rows.slice(1, 8 * head, 8 * head + 8);
      at::Tensor k = rows.slice(1, of_keys, of_keys + 8);
      const at::Tensor v = rows.slice(1, of_keys + 8 * kv_heads, of_keys + 8 * kv_heads + 8);
      if (llama_) {
        q = turned(q);
        k = turned(k);
      }
      const at::Tensor later = torch::ones({count, count}).triu(1).to(torch::kBool);
      const at::Tensor scores = (q.mm(k.t()) / std::sqrt(8.0))
                                    .masked_fill(later, -std::numeric_limits<double>::infinity());
      heads.push_back(torch::softmax(scores, -1).mm(v));
    }
    return linear(name + ".out", torch::cat(heads, 1));
  }
  at::Tensor mlp(const std::string& name, const at::Tensor& x) const {
    if (!llama_) return linear(name + ".down", torch::gelu(linear(name + ".up", x), "tanh"));
    const at::Tensor rows = linear(name + ".gate_up", x);
    const at::Tensor gate = rows.slice(1, 0, 48);
    return linear(name + ".down", gate * torch::sigmoid(gate) * rows.slice(1, 48, 96));
  }
  at::Tensor scores(const at::Tensor& ids) const {
    at::Tensor x = of("embed.tokens").index_select(0, ids);
    if (!llama_) x = x + of("embed.positions").slice(0, 0, ids.numel());
    for (const std::string block : {"blocks.0", "blocks.1"}) {
      x = x + attention(block + ".attention", norm(block + ".attention_norm", x));
      x = x + mlp(block + ".mlp", norm(block + ".mlp_norm", x));
    }
    return norm("norm", x).mm(of("embed.tokens").t());  // a tied head
  }

  std::map<std::string, at::Tensor> weights_;
  bool llama_ = false;
};

std::vector<std::int64_t> bytes_of(const std::string& words) {
  std::vector<std::int64_t> ids;
  for (const char c : words) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

class EvaluateLanguage : public testing::TestWithParam<Style> {
 protected:
  TransformerConfig config = config_of(GetParam());
  nn::Layers net = models::transformer(config, {.seed = 5});
  generate::LanguageModel model{net, config};
  PlainModel plain{net};
  std::unique_ptr<tokens::Tokenizer> tokenizer = tokens::bytes_tokenizer();
};

TEST_P(EvaluateLanguage, PerplexityIsThatOfEveryTokenInItsWindow) {
  const std::string words =
      "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
      "must be in want of a wife. Schöne Grüße!";
  const std::vector<std::int64_t> ids = bytes_of(words);
  const std::int64_t count = std::ssize(ids);
  struct Case {
    std::int64_t window, stride;  // as given
    std::int64_t real_window, real_stride;
  };
  for (const Case& one :
       {Case{16, 4, 16, 4}, {16, 16, 16, 16}, {5, 3, 5, 3}, {1, 0, 1, 1}, {0, 0, 40, 20}}) {
    double sum = 0;
    for (std::int64_t i = 1; i < count; ++i) {
      std::int64_t begin = 0;  // of the first window that reaches to token i
      while (begin + one.real_window < i) begin += one.real_stride;
      sum += plain.sum({ids.begin() + begin, ids.begin() + i + 1}, i - begin);
    }
    std::int64_t last = 0;
    const TextScore score =
        evaluate_text(model, *tokenizer, words,
                      {.window = one.window,
                       .stride = one.stride,
                       .progress = [&](std::int64_t done, std::int64_t) { last = done; }});
    EXPECT_EQ(score.tokens, count - 1);
    EXPECT_EQ(last, count - 1);
    EXPECT_EQ(score.window, one.real_window);
    EXPECT_EQ(score.stride, one.real_stride);
    EXPECT_NEAR(score.log_probability, sum, 1e-4 * std::abs(sum)) << one.window;
    EXPECT_NEAR(score.perplexity(), std::exp(-sum / static_cast<double>(count - 1)),
                1e-3 * score.perplexity());
    EXPECT_NEAR(score.bits_per_byte(), -sum / std::log(2.0) / static_cast<double>(count - 1), 1e-3);
  }
}

TEST_P(EvaluateLanguage, RefusesTextsAndWindowsThatCannotBeScored) {
  const auto refusal = [&](const std::string& words, TextEvaluateOptions options) {
    return message_of<UsageError>([&] { evaluate_text(model, *tokenizer, words, options); });
  };
  EXPECT_THAT(refusal("", {}), HasSubstr("the text has 0 tokens"));
  EXPECT_THAT(refusal("a", {}), HasSubstr("the text has 1 token"));
  EXPECT_THAT(refusal("abc", {.window = 41}), HasSubstr("a window of 41 tokens"));
  EXPECT_THAT(refusal("abc", {.window = 4, .stride = 5}), HasSubstr("a stride of 5 tokens"));
}

// 150 questions of 2 to 4 choices are several batches. One prompt ends with spaces, and the one of
// question 7 is longer than the context.
TEST_P(EvaluateLanguage, AnswersAreThoseOfSummedLogProbabilities) {
  std::vector<Question> questions;
  for (int i = 0; i < 150; ++i) {
    Question one{.prompt = "question " + std::string(static_cast<std::size_t>(1 + i % 11), 'x')};
    if (i == 3) one.prompt += "  ";
    if (i == 7) one.prompt = std::string(60, 'y') + " end";
    for (int choice = 0; choice < 2 + i % 3; ++choice)
      one.choices.push_back(std::string(static_cast<std::size_t>(1 + (i * choice) % 9),
                                        static_cast<char>('a' + (i + 5 * choice) % 26)));
    one.answer = i % 2;
    questions.push_back(one);
  }
  const ChoicesResult result = evaluate_choices(model, *tokenizer, questions);
  ASSERT_EQ(result.questions.size(), questions.size());
  EXPECT_EQ(result.cut, 3);  // question 7 has 3 choices
  std::int64_t right = 0, right_normalised = 0, differ = 0;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    std::vector<double> sums, normalised;
    for (const std::string& choice : question.choices) {
      std::vector<std::int64_t> ids = bytes_of(question.prompt + " " + choice);
      auto first = std::ssize(ids) - std::ssize(choice) - 1;
      if (i == 3) first -= 2;
      if (std::ssize(ids) > 41) {
        first -= std::ssize(ids) - 41;
        ids.erase(ids.begin(), ids.end() - 41);
      }
      sums.push_back(plain.sum(ids, first));
      normalised.push_back(sums.back() / static_cast<double>(choice.size()));
    }
    const auto& answered = result.questions[i];
    ASSERT_EQ(answered.log_probabilities.size(), sums.size());
    for (std::size_t c = 0; c < sums.size(); ++c)
      EXPECT_NEAR(answered.log_probabilities[c], sums[c], 1e-4 * std::abs(sums[c]))
          << i << " " << c;
    const auto largest = [](const std::vector<double>& of) {
      return std::max_element(of.begin(), of.end()) - of.begin();
    };
    EXPECT_EQ(answered.chosen, largest(sums)) << i;
    EXPECT_EQ(answered.chosen_normalised, largest(normalised)) << i;
    right += largest(sums) == question.answer ? 1 : 0;
    right_normalised += largest(normalised) == question.answer ? 1 : 0;
    differ += largest(sums) != largest(normalised) ? 1 : 0;
  }
  EXPECT_GT(differ, 10) << "the two rules must give different answers";
  EXPECT_EQ(result.right, right);
  EXPECT_EQ(result.right_normalised, right_normalised);
  EXPECT_DOUBLE_EQ(result.accuracy(), static_cast<double>(right) / 150);
  EXPECT_DOUBLE_EQ(result.standard_error(0.2), std::sqrt(0.2 * 0.8 / 149));
}

TEST_P(EvaluateLanguage, RefusesQuestionsThatCannotBeScoredWithTheirPlace) {
  const auto refusal = [&](const Question& question) {
    return message_of<UsageError>([&] { evaluate_choices(model, *tokenizer, {question}); });
  };
  EXPECT_THAT(refusal({.prompt = " ", .choices = {"a", "b"}, .place = "q.jsonl:4"}),
              testing::AllOf(HasSubstr("q.jsonl:4"), HasSubstr("choice 0: there is no token")));
  EXPECT_THAT(
      refusal({.prompt = "p", .choices = {"a", std::string(40, 'b')}, .place = "q.jsonl:5"}),
      testing::AllOf(HasSubstr("q.jsonl:5"), HasSubstr("choice 1: has 41 tokens")));
}

INSTANTIATE_TEST_SUITE_P(Styles, EvaluateLanguage, testing::Values(Style::Gpt2, Style::Llama));

class Questions : public testing::Test {
 protected:
  fs::path file =
      fs::path(TRESTLE_BINARY_DIR) / "scratch" / ("questions_" + std::to_string(getpid()));
  void SetUp() override { fs::create_directories(file.parent_path()); }
  void TearDown() override { fs::remove(file); }
  std::vector<Question> read(const std::string& words) const {
    std::ofstream(file) << words;
    return read_questions(file);
  }
};

TEST_F(Questions, AreReadFromLines) {
  const std::vector<Question> read_ones = read(
      "{\"prompt\": \"Grass is\", \"choices\": [\"green\", \"loud\"], \"answer\": 0}\n\n"
      "{\"question\": \"2+2=\", \"choices\": [\"3\", \"4\", \"5\"], \"answer\": 1, \"id\": 7}\r\n");
  ASSERT_EQ(read_ones.size(), 2U);
  EXPECT_EQ(read_ones[0].prompt, "Grass is");
  EXPECT_EQ(read_ones[1].prompt, "2+2=");
  EXPECT_EQ(read_ones[1].choices, (std::vector<std::string>{"3", "4", "5"}));
  EXPECT_EQ(read_ones[1].answer, 1);
  EXPECT_EQ(read_ones[1].place, file.string() + ":3");
}

TEST_F(Questions, NameFileLineAndKeyOfABadLine) {
  const std::string good = "{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 0}\n";
  const auto refused = [&](const std::string& line, const std::string& why) {
    const std::string message = message_of<FormatError>([&] { read(good + line + "\n"); });
    EXPECT_THAT(message, HasSubstr(file.string() + ":2")) << line;
    EXPECT_THAT(message, HasSubstr(why)) << line;
  };
  refused("{\"prompt\": ", "is no JSON object");
  refused("[1]", "is no JSON object");
  refused("{\"prompt\": \"\xff\"}", "not UTF-8");
  refused(R"({"choices": ["a", "b"], "answer": 0})", "has no key 'prompt' (or 'question')");
  refused(R"({"prompt": "p", "question": "p", "choices": ["a", "b"], "answer": 0})", "both");
  refused(R"({"question": 3, "choices": ["a", "b"], "answer": 0})", "key 'question': is no text");
  refused(R"({"prompt": "p", "answer": 0})", "has no key 'choices'");
  refused(R"({"prompt": "p", "choices": "ab", "answer": 0})", "key 'choices': is no list");
  refused(R"({"prompt": "p", "choices": ["a"], "answer": 0})", "key 'choices': has 1 choice");
  refused(R"({"prompt": "p", "choices": ["a", 2], "answer": 0})", "choice 1 is no text");
  refused(R"({"prompt": "p", "choices": ["", "b"], "answer": 0})", "choice 0 is empty");
  refused(R"({"prompt": "p", "choices": ["a", "b"]})", "has no key 'answer'");
  refused(R"({"prompt": "p", "choices": ["a", "b"], "answer": "A"})", "key 'answer': is \"A\"");
  refused(R"({"prompt": "p", "choices": ["a", "b"], "answer": 2})", "from 0 to 1");
  refused(R"({"prompt": "p", "choices": ["a", "b"], "answer": -1})", "key 'answer': is -1");
  refused(R"({"prompt": "p", "choices": ["a", "b"], "answer": 18446744073709551615})", "'answer'");
  EXPECT_THAT(message_of<UsageError>([&] { read("\n"); }), HasSubstr("has no questions"));
}

}  // namespace
}  // namespace trestle::train
