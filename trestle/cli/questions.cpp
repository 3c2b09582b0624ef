#include "trestle/cli/questions.h"

#include <unistd.h>

#include <iostream>
#include <optional>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::cli {

Questions::Questions(Asking asking)
    : input_(STDIN_FILENO), asks_(asking == Asking::OnTerminal && isatty(STDIN_FILENO) != 0) {}

void Questions::ask(const Question& question, const std::function<void(const std::string&)>& take) {
  constexpr int most_tries = 3;
  for (int tries = 1; asks_ && tries < most_tries; ++tries) {
    const std::string given = answer(question);
    try {
      return take(given);
    } catch (const UsageError& error) {
      std::cerr << error.what() << std::endl;
    }
  }
  take(asks_ ? answer(question) : question.default_answer);
}

std::string Questions::answer(const Question& question) {
  std::string padded = question.name;
  constexpr int name_width = 9;
  padded.resize(name_width, ' ');
  std::cerr << padded << question.about;
  if (!question.default_answer.empty())
    std::cerr << " [" << question.default_answer << ": " << question.why_default << "]";
  std::cerr << ": " << std::flush;
  const std::optional<std::string> line = input_.next();
  if (!line) {
    std::cerr << std::endl;
    throw UsageError(text("the input ended before an answer to '", question.name, "'"),
                     {.hint = "Give it on the command line, or --yes to take every default."});
  }
  const std::string words = trim(*line);
  return words.empty() ? question.default_answer : words;
}

}  // namespace trestle::cli
