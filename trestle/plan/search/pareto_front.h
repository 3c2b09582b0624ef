#pragma once

#include <cstddef>
#include <functional>
#include <vector>

// The strategies between which a choice of memory against time is open.
namespace trestle::plan {

// The bytes of a strategy's fullest device, and a number of seconds that its step cannot go below.
struct BoundedPoint {
  double bytes = 0;
  double bound = 0;
};

// The indices of the points that no other point dominates, in the order of ascending bytes. A point
// dominates another one if it needs no more bytes and no more seconds, and less of one of them. The
// front has one of equal points. `seconds_of` gives a point's true seconds, at least its bound; it
// is called once for each point whose bound is below the seconds of all smaller ones.
//
//   const auto front = plan::pareto_front(points, [&](std::size_t i) { return simulated(i); });
std::vector<std::size_t> pareto_front(const std::vector<BoundedPoint>& points,
                                      const std::function<double(std::size_t)>& seconds_of);

// The indices of at most `most` points that leave no place of a picture with logarithmic axes
// empty: all of them, or the first one in each cell of a grid. In ascending order.
std::vector<std::size_t> spread_over_places(const std::vector<BoundedPoint>& points,
                                            std::size_t most);

}  // namespace trestle::plan
