#pragma once

#include <functional>
#include <string>
#include <string_view>

// Text as a terminal shows it: how wide it is, and where a long line may end.
namespace trestle::train {

// Columns that UTF-8 text takes on a terminal: 2 for the wide letters of Chinese, Japanese and
// Korean and most emoji, none for marks upon a letter and for colours ("\x1b[1m").
int columns_of(std::string_view words);

// The longest beginning of `words`, without colours, that takes no more than so many columns.
std::string cut_to(std::string_view words, int columns);

// A line as several, none wider than `columns` where that can be: it ends between two of its parts,
// which " · " or two spaces stand between, and goes on below indented by `indent`. A part itself
// stays whole, so that a path or a command can be copied. What stands before `indent` is no part.
std::string folded(std::string_view line, int columns, int indent);

// How wide a terminal is now; asked for again each time, since a window may change.
using Columns = std::function<int()>;

// Of the terminal at a file descriptor; 80 where it does not say.
Columns columns_of_terminal(int descriptor);

}  // namespace trestle::train
