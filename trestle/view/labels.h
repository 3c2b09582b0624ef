#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/schedule/timeline.h"

// The labels of pictures, shared by text and SVG.
namespace trestle::view {

// "F", "B", "I", "W", "R", "U" (unshard) ...: a letter for each kind that occupies a rank.
std::string kind_letter(schedule::Kind kind);

// "forward", "backward", "input gradient", ...: the kind's name in a legend.
std::string_view kind_name(schedule::Kind kind);

// A cell of the text grid: "0F3", "0F3+1B2" for an overlapped pair, "0STEP".
std::string grid_label(const schedule::Action& action);

// The label inside an SVG cell: the micro-batch number, "3+2" for an overlapped pair, "step" ...
std::string cell_label(const schedule::Action& action);

// True if the event occupies its rank: computation, sharding, a norm or a step with a duration.
// Waiting for a message is drawn as idle time.
bool takes_rank(const schedule::Event& event);

// The number of cells in a picture of these timelines, and its limit. Viewers do not open larger
// pictures.
std::size_t cell_count(const std::vector<schedule::Timeline>& timelines);
inline constexpr std::size_t most_cells = 100'000;

// Throws UsageError with the number of cells and an alternative where a picture would be too large.
void check_size(std::size_t cells);
void check_size(const std::vector<schedule::Timeline>& timelines);

// 0.27272 -> "27.3 %".
std::string percent(double share);

}  // namespace trestle::view
