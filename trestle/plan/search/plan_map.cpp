#include "trestle/plan/search/plan_map.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "trestle/plan/search/pareto_front.h"

namespace trestle::plan {
namespace {

// The choices that a reader compares: of strategies with the same ones the table has the fastest.
auto choices_of(const Strategy& strategy) {
  return std::tuple(strategy.tensor, strategy.pipeline, strategy.data, strategy.level,
                    strategy.recompute, strategy.replicate > 1, strategy.offload);
}

std::vector<BoundedPoint> bounded_points(const std::vector<MapPoint>& points) {
  std::vector<BoundedPoint> bounded;
  for (const MapPoint& point : points)
    bounded.push_back({.bytes = point.bytes, .bound = point.seconds});
  return bounded;
}

class MapSearch {
 public:
  MapSearch(const MapInput& input, const MapRequest& request, PlanResult* result)
      : input_(input), request_(request), result_(*result) {}

  void run() {
    for (const std::size_t i :
         pareto_front(bounded_points(input_.fitting), [&](std::size_t i) { return seconds_of(i); }))
      result_.front.push_back(input_.plan_of(i));
    fill_table();
    draw();
  }

 private:
  double seconds_of(std::size_t i) const { return input_.plan_of(i).step.seconds; }

  double counted_seconds(std::size_t i) {
    const Strategy& strategy = input_.fitting[i].strategy;
    if (!input_.is_simulated(i))
      cells_ += strategy.pipeline * micro_batches_of(strategy, input_.batch);
    return seconds_of(i);
  }

  bool full() const { return std::ssize(result_.table) >= request_.plans; }

  void add_to_table(const Plan& plan) {
    const auto same = [&](const Plan& other) { return other.strategy == plan.strategy; };
    if (!full() && std::none_of(result_.table.begin(), result_.table.end(), same))
      result_.table.push_back(plan);
  }

  void fill_table() {
    for (const Plan& plan : result_.best) add_to_table(plan);
    for (const Plan& plan : result_.front) add_to_table(plan);
    // Each group in the order of its bounds, and the groups in the order of their least.
    std::vector<std::size_t> order(input_.fitting.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return input_.fitting[a].seconds < input_.fitting[b].seconds;
    });
    std::map<decltype(choices_of(Strategy())), std::size_t> number_of_group;
    std::vector<std::vector<std::size_t>> groups;
    for (const std::size_t i : order) {
      const auto [group, added] =
          number_of_group.try_emplace(choices_of(input_.fitting[i].strategy), groups.size());
      if (added) groups.emplace_back();
      groups[group->second].push_back(i);
    }
    for (const auto& group : groups) {
      if (full() || cells_ > request_.cells) return;
      add_to_table(input_.plan_of(fastest_of(group)));
    }
  }

  std::size_t fastest_of(const std::vector<std::size_t>& group) {
    std::size_t fastest = group.front();
    double seconds = counted_seconds(fastest);
    for (const std::size_t i : group) {
      if (input_.fitting[i].seconds >= seconds) break;  // its bound
      if (const double other = counted_seconds(i); other < seconds) {
        seconds = other;
        fastest = i;
      }
    }
    return fastest;
  }

  void draw() {
    std::vector<MapPoint> others;
    for (std::size_t i = 0; i < input_.fitting.size(); ++i) {
      MapPoint point = input_.fitting[i];
      if (input_.is_simulated(i)) {
        point.seconds = input_.plan_of(i).step.seconds;
        result_.map.push_back(point);
      } else {
        point.is = MapPoint::Is::Bounded;
        others.push_back(point);
      }
    }
    for (MapPoint point : input_.too_large) {
      point.is = MapPoint::Is::TooLarge;
      others.push_back(point);
    }
    for (const std::size_t i :
         spread_over_places(bounded_points(others), static_cast<std::size_t>(request_.points)))
      result_.map.push_back(others[i]);
  }

  const MapInput& input_;
  const MapRequest& request_;
  PlanResult& result_;
  std::int64_t cells_ = 0;  // simulated for the table
};

}  // namespace

void add_map(const MapInput& input, const MapRequest& request, PlanResult* result) {
  MapSearch(input, request, result).run();
}

}  // namespace trestle::plan
