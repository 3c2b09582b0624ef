#pragma once

#include <utility>
#include <vector>

// Dividing layers among stages.
namespace trestle::plan {

// The number of layers for each of `stages` stages, in order, such that the most expensive stage is
// as cheap as it can be: the exact optimum, by dynamic programming in O(stages x layers^2). Among
// equal optima the earlier stages take more layers. `costs` are the layers' costs, in any unit,
// each >= 0. The layers `first` to `last` (counted) of each pair in `together` go into one stage.
// Throws UsageError if there are fewer layers than stages, or fewer places to cut than needed,
// stages < 1, or a cost that is negative or not a number.
//
//   balance({1, 2, 3, 4, 5, 6}, 2);  // {4, 2}
std::vector<int> balance(const std::vector<double>& costs, int stages,
                         const std::vector<std::pair<int, int>>& together = {});

}  // namespace trestle::plan
