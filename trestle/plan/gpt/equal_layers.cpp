#include "trestle/plan/gpt/equal_layers.h"

#include <algorithm>
#include <cstddef>

namespace trestle::plan {

// Each layer goes to the stage that costs least with it. The costs of a stage rise with its layers,
// so the layers are taken in the order of these costs, and the most expensive stage of no other cut
// is cheaper.
std::vector<int> cut_equal_layers(std::int64_t layers, int stages, const EqualLayers& costs) {
  const auto extra = [&](int layer) { return layer < costs.extra_layers ? costs.extra : 0; };
  std::vector<int> cut(static_cast<std::size_t>(stages), 1);
  std::vector<double> seconds(cut.size(), costs.layer + extra(0));
  seconds.front() += costs.first;
  seconds.back() += costs.last;
  for (std::int64_t left = layers - stages; left > 0; --left) {
    std::size_t cheapest = 0;
    for (std::size_t s = 1; s < cut.size(); ++s)
      if (seconds[s] + extra(cut[s]) < seconds[cheapest] + extra(cut[cheapest])) cheapest = s;
    seconds[cheapest] += costs.layer + extra(cut[cheapest]);
    ++cut[cheapest];
  }
  return cut;
}

}  // namespace trestle::plan
