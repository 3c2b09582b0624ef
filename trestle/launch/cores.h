#pragma once

#include <vector>

namespace trestle::launch {

// The numbers of the cores that this process may use, ascending.
std::vector<int> allowed_cores();

// Splits cores over ranks: neighbours, with sizes that differ by one at most. All lists are empty
// if there are fewer cores than ranks: the kernel's scheduler then shares them better than a fixed
// rule.
std::vector<std::vector<int>> split_cores(const std::vector<int>& cores, int ranks);

}  // namespace trestle::launch
