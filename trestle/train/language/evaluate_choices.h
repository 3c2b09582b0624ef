#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trestle/generate/language_model.h"
#include "trestle/tokens/tokenizer.h"

// Multiple-choice questions: the model answers with the choice that it finds most probable behind
// the question, by the rule of the Language Model Evaluation Harness (EleutherAI).
//
//   const auto questions = trestle::train::read_questions("hellaswag.jsonl");
//   const auto result = trestle::train::evaluate_choices(model, *tokenizer, questions);
//   std::cout << result.accuracy() << " " << result.normalised_accuracy() << "\n";
namespace trestle::train {

struct Question {
  std::string prompt = {};
  std::vector<std::string> choices = {};
  std::int64_t answer = 0;  // the right choice, from 0
  std::string place = {};   // "file:line", for messages
};

// Reads a line {"prompt": "...", "choices": ["...", "..."], "answer": 0} for each question; the
// prompt may be called "question". Other keys are ignored, and so are empty lines. Throws
// FormatError, with file, line and key, for a line without these, fewer than two choices, an empty
// choice, and an answer that is no choice; UsageError for a file without questions.
std::vector<Question> read_questions(const std::filesystem::path& file);

struct ChoicesOptions {
  std::string separator = " ";  // between prompt and choice
  // Called with (questions done, all).
  std::function<void(std::int64_t, std::int64_t)> progress = {};
};

struct ChoicesResult {
  struct Answered {
    std::vector<double> log_probabilities;  // of each choice, in nats
    std::int64_t chosen = 0, chosen_normalised = 0;
  };
  std::vector<Answered> questions;
  std::int64_t right = 0, right_normalised = 0;
  std::int64_t cut = 0;                // choices whose prompt lost its begin to fit the context
  double accuracy() const;             // the share of right answers: "acc" of the harness
  double normalised_accuracy() const;  // the same, normalised by bytes: "acc_norm"
  // The standard error of such a share: sqrt(share (1 - share) / (questions - 1)); 0 for one.
  double standard_error(double share) const;
};

// The score of a choice is the sum of the log-probabilities of its tokens: those of prompt +
// separator + choice without the first N, where the prompt alone has N. Spaces at the prompt's end
// belong to the choice. The tokenizer's prefix (BOS) comes first. The answer is the choice with the
// largest score, and normalised by bytes the one with the largest score / bytes of the choice; the
// first of equal ones.
//
// The choices of a question share the keys and values of the tokens that all of them begin with.
//
// Too many tokens for the context lose their begin. Throws UsageError, with the question's place,
// for a choice without a token of its own, for one that fills the context alone, and for an empty
// prompt without a prefix.
ChoicesResult evaluate_choices(const generate::LanguageModel& model,
                               const tokens::Tokenizer& tokenizer,
                               const std::vector<Question>& questions,
                               const ChoicesOptions& options = {});

}  // namespace trestle::train
