#include "trestle/generate/generate.h"

#include <algorithm>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"

namespace trestle::generate {

std::string to_word(Ended ended) {
  switch (ended) {
    case Ended::EndToken:
      return "end token";
    case Ended::StopWord:
      return "stop word";
    case Ended::Length:
      return "length";
    case Ended::Context:
      return "context";
    case Ended::Stopped:
      return "stopped";
  }
  return "";
}

Generated generate(const LanguageModel& model, const std::vector<std::int64_t>& prompt,
                   const GenerateOptions& options) {
  check_choice(options.choice);
  const std::int64_t context = model.config().context;
  if (prompt.empty())
    throw UsageError("the prompt has no token",
                     {.hint = "Give a prompt of at least one character."});
  if (std::ssize(prompt) >= context)
    throw UsageError(text("the prompt has ", counted(std::ssize(prompt), "token"),
                          " and leaves no room in the model's context of ", context),
                     {.hint = "Shorten the prompt."});
  const std::int64_t allowed = options.tokens > 0 ? options.tokens : model.config().vocabulary;
  Generated result;
  std::vector<std::int64_t> so_far = prompt;
  LanguageModel::State state = model.begin();
  Stopwatch watch;
  at::Tensor scores = model.extend(state, prompt);
  while (true) {
    if (std::ssize(result.ids) >= options.most_tokens) break;
    const std::int64_t id =
        choose_token(scores, so_far, options.text_number, allowed, options.choice);
    if (result.ids.empty()) result.prompt_seconds = watch.seconds();
    const auto& ends = options.end_tokens;
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) {
      result.ended = Ended::EndToken;
      break;
    }
    result.ids.push_back(id);
    so_far.push_back(id);
    if (options.on_token && !options.on_token(id)) {
      result.ended = Ended::Stopped;
      break;
    }
    if (std::ssize(result.ids) >= options.most_tokens) break;
    if (std::ssize(so_far) >= context) {
      result.ended = Ended::Context;
      break;
    }
    scores = model.extend(state, {id});
  }
  result.answer_seconds = watch.seconds() - result.prompt_seconds;
  return result;
}

}  // namespace trestle::generate
