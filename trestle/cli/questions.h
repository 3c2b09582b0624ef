#pragma once

#include <string>

#include "trestle/cli/line_reader.h"

namespace trestle::cli {

// Asks the questions that the command line leaves open. Each one has a default, which an empty line
// takes.
class Questions {
 public:
  // Without a terminal on the standard input every answer is the default.
  enum class Asking { No, OnTerminal };
  explicit Questions(Asking asking);

  // "devices     how many [2: the cores of this machine]: ", on the standard error, and the next
  // line of the standard input without spaces around it. At its end: the default.
  std::string ask(const std::string& name, const std::string& about,
                  const std::string& default_answer, const std::string& why_default);

 private:
  LineReader input_;
  bool asks_;
};

}  // namespace trestle::cli
