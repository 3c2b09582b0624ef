#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/schedule/timeline.h"

// How pictures name things, in one place, so that text and SVG agree.
namespace trestle::view {

// "F", "B", "I", "W", "R", "U" (unshard) ...: one letter for each kind that takes a rank's time.
std::string kind_letter(schedule::Kind kind);

// "forward", "backward", "input gradient", ...: the kind in a legend.
std::string_view kind_name(schedule::Kind kind);

// The cell of the text grid: "0F3", "0F3+1B2" for an overlapped pair, "0STEP".
std::string grid_label(const schedule::Action& action);

// The short label inside an SVG cell: the micro-batch number, "3+2" for an overlapped pair, "step"
// ...
std::string cell_label(const schedule::Action& action);

// True if the event takes its rank's time: compute, sharding, norm and step with a length. Waiting
// for a message does not count: it is drawn as idle.
bool takes_rank(const schedule::Event& event);

// How many cells a picture of these timelines has, and the most that one can show. A larger one
// would be gigabytes that no program opens, and nobody can see a cell of.
std::size_t cell_count(const std::vector<schedule::Timeline>& timelines);
inline constexpr std::size_t most_cells = 100'000;

// Throws UsageError, with the number and what to do instead, where a picture would be too large.
void check_size(const std::vector<schedule::Timeline>& timelines);

// 0.27272 -> "27.3 %".
std::string percent(double share);

}  // namespace trestle::view
