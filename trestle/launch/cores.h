#pragma once

#include <vector>

namespace trestle::launch {

// Numbers of the cores that this process may use, ascending.
std::vector<int> allowed_cores();

// Which cores each rank gets: neighbours, the same number of them to within one. All empty where there
// are fewer cores than ranks: then the system shares them out better than a fixed rule.
std::vector<std::vector<int>> split_cores(const std::vector<int>& cores, int ranks);

}  // namespace trestle::launch
