#include "trestle/plan/gpt/equal_layers.h"

#include <algorithm>
#include <cstddef>

namespace trestle::plan {

// Each layer goes to the stage that is cheapest so far. As all layers cost the same, no exchange of
// layers between stages makes the most expensive stage of this cut cheaper.
std::vector<int> cut_equal_layers(std::int64_t layers, int stages, const EqualLayers& costs) {
  std::vector<int> cut(static_cast<std::size_t>(stages), 1);
  std::vector<double> seconds(cut.size(), costs.layer);
  seconds.front() += costs.first;
  seconds.back() += costs.last;
  for (std::int64_t left = layers - stages; left > 0; --left) {
    const auto cheapest = static_cast<std::size_t>(
        std::min_element(seconds.begin(), seconds.end()) - seconds.begin());
    ++cut[cheapest];
    seconds[cheapest] += costs.layer;
  }
  return cut;
}

}  // namespace trestle::plan
