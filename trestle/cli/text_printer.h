#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/generate/write_text.h"

namespace trestle::cli {

// Adds how close the closest choice of a token was. An infinite gap is null.
void add_gap(nlohmann::ordered_json& line, const generate::Generated& made);

// Prints the texts of a batch in the order of their prompts, each with its begin as it is written:
// the words of a text are held back until the texts before it have ended.
class TextPrinter {
 public:
  enum class Form { Words, Json };
  TextPrinter(Form form, std::int64_t context) : form_(form), context_(context) {}

  struct Part {
    std::string prompt;
    std::vector<std::int64_t> ids;
    std::string begin = {};  // printed before the text
    std::string held = {};
    std::optional<generate::Written> written = {};
  };
  void start(std::vector<Part> parts);
  void add(std::size_t part, std::string_view words);
  void end(std::size_t part, const generate::Written& written);
  // Ends a line that is not whole, so that an error message begins a line.
  void break_line();

 private:
  void print();
  void print_end(const Part& part);

  Form form_;
  std::int64_t context_;
  std::vector<Part> parts_;
  std::size_t current_ = 0;
  bool inside_line_ = false;
};

}  // namespace trestle::cli
