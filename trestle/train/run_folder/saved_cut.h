#pragma once

#include <map>
#include <string>
#include <vector>

// The cut that a run was saved with. A resumed run whose recipe has no balance takes it again: the
// bits of a step depend on the cut, and another measurement may give another one.
namespace trestle::train {

// Adds the cut to the numbers of a run's state (checkpoint::TrainState).
void save_cut(const std::vector<int>& balance, std::map<std::string, double>& numbers);

// Empty for the state of an older version. Throws FormatError for numbers of layers that no cut
// has.
std::vector<int> saved_cut(const std::map<std::string, double>& numbers);

}  // namespace trestle::train
