#include "trestle/cli/questions.h"

#include <unistd.h>

#include <iostream>
#include <optional>

#include "trestle/base/text.h"

namespace trestle::cli {

Questions::Questions(Asking asking)
    : input_(STDIN_FILENO), asks_(asking == Asking::OnTerminal && isatty(STDIN_FILENO) != 0) {}

std::string Questions::ask(const std::string& name, const std::string& about,
                           const std::string& default_answer, const std::string& why_default) {
  if (!asks_) return default_answer;
  std::string padded = name;
  constexpr int name_width = 9;
  padded.resize(name_width, ' ');
  std::cerr << padded << about;
  if (!default_answer.empty()) std::cerr << " [" << default_answer << ": " << why_default << "]";
  std::cerr << ": " << std::flush;
  const std::optional<std::string> line = input_.next();
  const std::string answer = line ? trim(*line) : std::string();
  return answer.empty() ? default_answer : answer;
}

}  // namespace trestle::cli
