#pragma once

#include <string>
#include <string_view>

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

// 0.27272 -> "27.3 %".
std::string percent(double share);

}  // namespace trestle::view
