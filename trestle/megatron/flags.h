#pragma once

#include <string>
#include <string_view>
#include <vector>

// Splits the text of a command line into flags and their values. Not installed.
namespace trestle::megatron {

struct Flag {
  std::string name;  // with its hyphens: "--num-layers"
  std::vector<std::string> values;
  int line = 1;  // of the text, where the flag begins
};

// Words are split as a POSIX shell splits them: by white space outside of quotes; a backslash at
// the end of a line joins it with the next one; # begins a comment at the start of a word. A word
// that begins with a hyphen and is no number is a flag, and the words up to the next flag are its
// values; --flag=value gives the first of them. Variables such as $NAME are kept as they are.
//
// Throws UsageError for a quote without an end, and for words before the first flag.
std::vector<Flag> parse_flags(std::string_view text);

// The text on one line of a comment: control characters become '?', and a long text is cut.
std::string on_one_line(std::string_view text);

}  // namespace trestle::megatron
