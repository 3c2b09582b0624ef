#include "trestle/plan/search/pareto_front.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

namespace trestle::plan {
namespace {

// A bound may exceed the seconds of its own point by rounding.
constexpr double rounding = 1e-9;

// The cell of a value on a logarithmic axis of `cells` cells.
class LogAxis {
 public:
  void add(double value) {
    const double at = position(value);
    least_ = std::min(least_, at);
    most_ = std::max(most_, at);
  }
  std::int64_t cell(double value, std::int64_t cells) const {
    const double length = most_ - least_;
    if (!(length > 0)) return 0;
    const double share = (position(value) - least_) / length;
    return std::min(static_cast<std::int64_t>(share * static_cast<double>(cells)), cells - 1);
  }

 private:
  static double position(double value) { return std::log(std::clamp(value, 1e-12, 1e300)); }
  double least_ = std::numeric_limits<double>::infinity();
  double most_ = -std::numeric_limits<double>::infinity();
};

}  // namespace

std::vector<std::size_t> pareto_front(const std::vector<BoundedPoint>& points,
                                      const std::function<double(std::size_t)>& seconds_of) {
  std::vector<std::size_t> order(points.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(points[a].bytes, points[a].bound) <
           std::pair(points[b].bytes, points[b].bound);
  });
  std::vector<std::size_t> front;
  double fastest = std::numeric_limits<double>::infinity();
  for (const std::size_t i : order) {
    if (points[i].bound > fastest * (1 + rounding)) continue;
    const double seconds = seconds_of(i);
    if (!(seconds < fastest)) continue;
    // A faster point with the same bytes replaces the last one.
    if (!front.empty() && points[front.back()].bytes == points[i].bytes) front.pop_back();
    front.push_back(i);
    fastest = seconds;
  }
  return front;
}

std::vector<std::size_t> spread_over_places(const std::vector<BoundedPoint>& points,
                                            std::size_t most) {
  std::vector<std::size_t> kept(points.size());
  std::iota(kept.begin(), kept.end(), std::size_t{0});
  if (points.size() <= most) return kept;
  LogAxis bytes, seconds;
  for (const BoundedPoint& point : points) {
    bytes.add(point.bytes);
    seconds.add(point.bound);
  }
  for (std::int64_t cells = 256;; cells = cells * 3 / 4) {
    std::set<std::pair<std::int64_t, std::int64_t>> taken;
    kept.clear();
    for (std::size_t i = 0; i < points.size(); ++i)
      if (taken.emplace(bytes.cell(points[i].bytes, cells), seconds.cell(points[i].bound, cells))
              .second)
        kept.push_back(i);
    if (kept.size() <= most || cells == 1) break;
  }
  if (kept.size() > most) kept.resize(most);
  return kept;
}

}  // namespace trestle::plan
