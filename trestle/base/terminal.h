#pragma once

#include <functional>
#include <string>
#include <string_view>

// The width of text on a terminal, and where a long line may be broken.
namespace trestle {

// The number of columns of UTF-8 text on a terminal: 2 for wide letters of Chinese, Japanese and
// Korean and for most emoji, none for combining marks and colours ("\x1b[1m").
int columns_of(std::string_view words);

// The longest beginning of `words`, without colours, that fits into the columns.
std::string cut_to(std::string_view words, int columns);

// Breaks a line into several, none wider than `columns` where possible. It is broken between two
// parts, which " · " or two spaces separate, and continues indented by `indent`. A part stays
// whole, so that a path or a command can be copied. Text before `indent` is not a part.
std::string folded(std::string_view line, int columns, int indent);

// Breaks a paragraph at its spaces into lines of at most `columns` columns. The lines after the
// first are indented by `indent`. A word that is wider stays whole.
std::string wrapped(std::string_view words, int columns, int indent);

// Returns the current width of a terminal; called again each time, since a window may change.
using Columns = std::function<int()>;

// The width of the terminal at a file descriptor; 80 where it is unknown.
Columns columns_of_terminal(int descriptor);

// The width for tables and help on a file descriptor: the variable COLUMNS if it is a number from
// 20 to 10,000, else the width of the terminal, else 80.
int columns_for_text(int descriptor);

}  // namespace trestle
