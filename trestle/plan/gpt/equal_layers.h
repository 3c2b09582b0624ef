#pragma once

#include <cstdint>
#include <vector>

// Cuts a model of equal layers. Inside of plan. Not installed.
namespace trestle::plan {

struct EqualLayers {
  double layer = 1;  // the cost of each, above 0
  double first = 0;  // what the first stage has beside its layers
  double last = 0;   // what the last stage has
  // The first layers of each stage may cost more: this number of them, each by `extra`.
  int extra_layers = 0;
  double extra = 0;
};

// The layers of each stage, one or more, such that the most expensive stage is as cheap as
// possible. balance() (balance.h) gives a cut of the same cost in O(stages x layers^2); this takes
// O(stages x layers). Needs layers >= stages >= 1.
std::vector<int> cut_equal_layers(std::int64_t layers, int stages, const EqualLayers& costs);

}  // namespace trestle::plan
