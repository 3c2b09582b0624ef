#pragma once

#include <functional>
#include <string>

#include "trestle/cli/line_reader.h"

namespace trestle::cli {

struct Question {
  std::string name;   // "devices"
  std::string about;  // "8, or 2x4 for two machines with four each"
  std::string default_answer = {};
  std::string why_default = {};
};

// Asks the questions that the command line leaves open. Each one has a default, which an empty line
// takes.
class Questions {
 public:
  // Without a terminal on the standard input every answer is the default.
  enum class Asking { No, OnTerminal };
  explicit Questions(Asking asking);
  // Asks on the terminal `descriptor`, whatever it is. For tests.
  explicit Questions(int descriptor) : input_(descriptor), asks_(true) {}

  // Prints "devices     how many [2: the cores of this machine]: " on the standard error and calls
  // `take` with the next line of the standard input, without spaces around it. If `take` throws
  // UsageError, the error is printed and the question is asked again, up to three times in all.
  // Throws UsageError of the last answer, and at the end of the input.
  void ask(const Question& question, const std::function<void(const std::string&)>& take);

 private:
  std::string answer(const Question& question);

  LineReader input_;
  bool asks_;
};

}  // namespace trestle::cli
