#include "trestle/train/language/evaluate_choices.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/base/utf8.h"
#include "trestle/generate/write_text.h"

namespace trestle::train {

namespace {

constexpr const char* question_example =
    "A line is such as {\"prompt\": \"Grass is\", \"choices\": [\"green\", \"loud\"], \"answer\": "
    "0}.";

[[noreturn]] void refuse_line(const std::string& place, const std::string& why) {
  throw FormatError(why, {.file = place, .hint = question_example});
}

std::string prompt_of(const nlohmann::json& line, const std::string& place) {
  const bool has_prompt = line.contains("prompt"), has_question = line.contains("question");
  if (has_prompt && has_question)
    refuse_line(place, "has both the key 'prompt' and the key 'question', which mean the same");
  if (!has_prompt && !has_question) refuse_line(place, "has no key 'prompt' (or 'question')");
  const char* const key = has_prompt ? "prompt" : "question";
  if (!line[key].is_string()) refuse_line(place, text("key '", key, "': is no text"));
  return line[key].get<std::string>();
}

std::vector<std::string> choices_of(const nlohmann::json& line, const std::string& place) {
  if (!line.contains("choices")) refuse_line(place, "has no key 'choices'");
  const nlohmann::json& given = line["choices"];
  if (!given.is_array()) refuse_line(place, "key 'choices': is no list of texts");
  std::vector<std::string> choices;
  for (const auto& one : given) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty())
      refuse_line(place, text("key 'choices': choice ", choices.size(),
                              one.is_string() ? " is empty" : " is no text"));
    choices.push_back(one.get<std::string>());
  }
  if (choices.size() < 2)
    refuse_line(place, text("key 'choices': has ", counted(std::ssize(choices), "choice"),
                            ", and at least 2 are needed"));
  return choices;
}

Question question_of(const nlohmann::json& line, const std::string& place) {
  if (!line.is_object()) refuse_line(place, "is no JSON object");
  Question question{.prompt = prompt_of(line, place), .choices = choices_of(line, place)};
  if (!line.contains("answer")) refuse_line(place, "has no key 'answer'");
  const nlohmann::json& answer = line["answer"];
  const auto last = std::ssize(question.choices) - 1;
  if (!answer.is_number_integer() || answer < 0 || answer > last)
    refuse_line(place, text("key 'answer': is ", answer.dump(-1, ' ', true),
                            ", and must be a choice from 0 to ", last));
  question.answer = answer.get<std::int64_t>();
  question.place = place;
  return question;
}

std::int64_t place_of_largest(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

// The tokens of a choice behind its prompt.
class ChoiceEncoder {
 public:
  ChoiceEncoder(const tokens::Tokenizer& tokenizer, std::int64_t context,
                const ChoicesOptions& options)
      : tokenizer_(tokenizer), context_(context), separator_(options.separator) {}

  generate::LanguageModel::Continuation encode(const Question& question, std::size_t choice) {
    const auto whole = [&](const std::string& words) {
      return generate::prompt_ids(tokenizer_, words);
    };
    const auto refuse = [&](const std::string& why) {
      throw UsageError(text("choice ", choice, ": ", why), {.file = question.place});
    };
    const std::string& prompt = question.prompt;
    // The harness gives the spaces at the end of a prompt to the choice, because most tokenizers
    // make one token of a space and a word.
    const std::string begin = prompt.substr(0, prompt.find_last_not_of(" \t\r\n\v\f") + 1);
    const std::int64_t first = std::ssize(whole(begin));
    if (first == 0) refuse("there is no token before it; give the question a prompt");
    generate::LanguageModel::Continuation made{
        whole(prompt + separator_ + question.choices[choice]), first};
    const std::int64_t own = std::ssize(made.ids) - first;
    if (own < 1) refuse("adds no token to the prompt");
    const std::int64_t surplus = std::ssize(made.ids) - (context_ + 1);
    if (surplus <= 0) return made;
    if (own > context_)
      refuse(text("has ", own, " tokens, more than the model's context of ", context_));
    made.ids.erase(made.ids.begin(), made.ids.begin() + surplus);
    made.first -= surplus;
    ++cut_;
    return made;
  }
  std::int64_t cut() const { return cut_; }

 private:
  const tokens::Tokenizer& tokenizer_;
  std::int64_t context_;
  const std::string& separator_;
  std::int64_t cut_ = 0;
};

}  // namespace

std::vector<Question> read_questions(const std::filesystem::path& file) {
  std::vector<Question> questions;
  std::int64_t number = 0;
  for (const std::string& raw : split(read_file(file), '\n')) {
    ++number;
    const std::string words = trim(raw);
    if (words.empty()) continue;
    const std::string place = text(file.string(), ":", number);
    if (!is_utf8(words)) refuse_line(place, "has bytes that are not UTF-8, which JSON needs");
    questions.push_back(question_of(nlohmann::json::parse(words, nullptr, false), place));
  }
  if (questions.empty())
    throw UsageError("has no questions", {.file = file.string(), .hint = question_example});
  return questions;
}

double ChoicesResult::accuracy() const {
  return static_cast<double>(right) / static_cast<double>(questions.size());
}
double ChoicesResult::normalised_accuracy() const {
  return static_cast<double>(right_normalised) / static_cast<double>(questions.size());
}
double ChoicesResult::standard_error(double share) const {
  if (questions.size() < 2) return 0;
  return std::sqrt(share * (1 - share) / static_cast<double>(questions.size() - 1));
}

ChoicesResult evaluate_choices(const generate::LanguageModel& model,
                               const tokens::Tokenizer& tokenizer,
                               const std::vector<Question>& questions,
                               const ChoicesOptions& options) {
  ChoiceEncoder encoder(tokenizer, model.config().context, options);
  // All choices are encoded first, so that a bad one is refused before the first one is scored.
  std::vector<std::vector<generate::LanguageModel::Continuation>> all;  // [question][choice]
  for (const Question& question : questions) {
    auto& own = all.emplace_back();
    for (std::size_t choice = 0; choice < question.choices.size(); ++choice)
      own.push_back(encoder.encode(question, choice));
  }
  ChoicesResult result;
  result.cut = encoder.cut();
  // The choices of whole questions are one batch, limited in its tokens with their padding.
  constexpr std::int64_t most_tokens = 4096;
  for (std::size_t first = 0; first < questions.size();) {
    std::size_t last = first;
    std::int64_t longest = 0, texts = 0;
    for (; last < questions.size(); ++last) {
      std::int64_t length = longest;
      for (const auto& one : all[last]) length = std::max(length, std::ssize(one.ids));
      const std::int64_t more = texts + std::ssize(all[last]);
      if (last > first && length * more > most_tokens) break;
      longest = length;
      texts = more;
    }
    const auto rows =
        model.log_probabilities_of_groups({all.begin() + static_cast<std::ptrdiff_t>(first),
                                           all.begin() + static_cast<std::ptrdiff_t>(last)});
    auto row = rows.begin();
    for (; first < last; ++first) {
      const Question& question = questions[first];
      ChoicesResult::Answered answered;
      std::vector<double> normalised;
      for (const std::string& choice : question.choices) {
        const double sum = std::accumulate(row->begin(), row->end(), 0.0);
        answered.log_probabilities.push_back(sum);
        normalised.push_back(sum / static_cast<double>(choice.size()));
        ++row;
      }
      answered.chosen = place_of_largest(answered.log_probabilities);
      answered.chosen_normalised = place_of_largest(normalised);
      result.right += answered.chosen == question.answer ? 1 : 0;
      result.right_normalised += answered.chosen_normalised == question.answer ? 1 : 0;
      result.questions.push_back(std::move(answered));
    }
    if (options.progress) options.progress(std::ssize(result.questions), std::ssize(questions));
  }
  return result;
}

}  // namespace trestle::train
