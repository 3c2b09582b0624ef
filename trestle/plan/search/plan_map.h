#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "trestle/plan/search/search.h"

// The front, the table and the map of a result. Not installed.
namespace trestle::plan {

struct MapInput {
  std::vector<MapPoint> fitting = {}, too_large = {};  // with their bounds
  std::int64_t batch = 1;
  std::function<const Plan&(std::size_t)> plan_of;  // simulates a strategy of `fitting`
  std::function<bool(std::size_t)> is_simulated;    // whether it is known without that
};

// Sets PlanResult::front, table and map. PlanResult::best is set already.
void add_map(const MapInput& input, const MapRequest& request, PlanResult* result);

}  // namespace trestle::plan
