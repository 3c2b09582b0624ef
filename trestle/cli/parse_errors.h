#pragma once

#include <string>
#include <vector>

// Messages for a command line that cannot be parsed, in the words of all other messages. Inside of
// cli; only sources that include CLI11 use it.
namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace trestle::cli {

struct ParseMessage {
  std::string text;
  std::string hint;  // "See trestle train --help."
};

// The verb that the command line chose, innermost.
const CLI::App& chosen_app(const CLI::App& app);

// For words that no verb takes: "unknown flag '--epoch'; did you mean '--epochs'?", for the first.
ParseMessage unknown_argument(const CLI::App& app, const std::vector<std::string>& words);

// Whether the first of these words is where a verb should be.
bool is_unknown_verb(const CLI::App& app, const std::vector<std::string>& words);

ParseMessage parse_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace trestle::cli
