#pragma once

#include <optional>
#include <string>

#include "trestle/comm/gather.h"

namespace trestle::comm {

// find_difference() (gather.h) with the first line that differs. A rank that has fewer lines has
// "nothing" there. A long line is shortened to the text around the place that differs.
std::optional<RankDifference> find_line_difference(const Group& group, const std::string& own);

}  // namespace trestle::comm
