#include "trestle/plan/search/pareto_front.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "tests/plan/vtrain.h"
#include "trestle/base/random.h"
#include "trestle/plan/gpt/planned_gpt.h"
#include "trestle/plan/search/search.h"

namespace trestle::plan {
namespace {

using testing::ElementsAre;

using Places = std::set<std::pair<double, double>>;  // bytes and seconds

// Every point against every other one.
Places brute_force_front(const std::vector<std::pair<double, double>>& points) {
  Places front;
  for (const auto& [bytes, seconds] : points) {
    const bool dominated = std::any_of(points.begin(), points.end(), [&](const auto& other) {
      return other.first <= bytes && other.second <= seconds &&
             (other.first < bytes || other.second < seconds);
    });
    if (!dominated) front.emplace(bytes, seconds);
  }
  return front;
}

TEST(ParetoFront, SkipsWhatABoundExcludes) {
  const std::vector<BoundedPoint> points = {{4, 1}, {1, 8}, {2, 4}, {3, 5}, {2, 3}};
  const std::vector<double> seconds = {2, 8, 4, 5, 6};
  std::vector<std::size_t> simulated;
  const auto front = pareto_front(points, [&](std::size_t i) {
    simulated.push_back(i);
    return seconds[i];
  });
  EXPECT_THAT(front, ElementsAre(1, 2, 0));
  EXPECT_THAT(simulated, ElementsAre(1, 4, 2, 0));  // point 3 is slower than point 2 by its bound
}

TEST(ParetoFront, HasOneOfEqualPointsAndNoneOfNone) {
  EXPECT_TRUE(pareto_front({}, [](std::size_t) { return 1.0; }).empty());
  EXPECT_THAT(pareto_front({{1, 1}, {1, 1}, {2, 1}}, [](std::size_t) { return 1.0; }),
              ElementsAre(0));
}

// Whole numbers, so that many points have equal bytes or equal seconds.
TEST(ParetoFront, EqualsBruteForceOnDrawnPoints) {
  Random random(24);
  for (int draw = 0; draw < 200; ++draw) {
    std::vector<BoundedPoint> points;
    std::vector<std::pair<double, double>> true_points;
    const auto count = 1 + random.below(60);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto bytes = static_cast<double>(1 + random.below(12));
      const auto seconds = static_cast<double>(1 + random.below(12));
      points.push_back({.bytes = bytes, .bound = seconds * random.uniform(0.5, 1)});
      true_points.emplace_back(bytes, seconds);
    }
    Places front;
    for (const std::size_t i :
         pareto_front(points, [&](std::size_t i) { return true_points[i].second; }))
      EXPECT_TRUE(front.insert(true_points[i]).second);
    EXPECT_EQ(front, brute_force_front(true_points));
  }
}

TEST(SpreadOverPlaces, KeepsAtMostTheNumberAndBothEnds) {
  std::vector<BoundedPoint> points;
  Random random(7);
  for (int i = 0; i < 5000; ++i)
    points.push_back({.bytes = random.uniform(1e9, 1e11), .bound = random.uniform(1, 50)});
  EXPECT_EQ(spread_over_places(points, 5000).size(), 5000U);
  const auto kept = spread_over_places(points, 300);
  EXPECT_LE(kept.size(), 300U);
  EXPECT_GE(kept.size(), 150U);
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
  double largest = 0;
  for (const std::size_t i : kept) largest = std::max(largest, points[i].bytes);
  EXPECT_GT(largest, 9e10);
}

GptModel gpt_of_layers(std::int64_t layers) {
  return {.layers = layers, .hidden = 2048, .heads = 16, .sequence = 1024, .vocabulary = 51200};
}

Places places_of(const std::vector<Plan>& plans) {
  Places places;
  for (const Plan& plan : plans) places.emplace(plan.worst.total(), plan.step.seconds);
  return places;
}

// The front of a search that simulates few strategies is that of one which simulates all of them.
TEST(Front, EqualsThatOfAllSimulatedStrategies) {
  const Machine machine = vtrain::machine();
  struct Case {
    std::int64_t layers;
    int devices;
    Goal goal;
  };
  for (const Case& tried : {Case{10, 8, Goal::Time}, {24, 4, Goal::Memory}, {24, 8, Goal::Time}}) {
    const PlannedGpt model(gpt_of_layers(tried.layers), machine);
    PlanRequest request{
        .devices = tried.devices, .batch = 48, .goal = tried.goal, .map = MapRequest()};
    const PlanResult bounded = find_plans(model, machine, request);
    request.simulate_all = true;
    request.top = 1'000'000;
    const PlanResult all = find_plans(model, machine, request);
    ASSERT_EQ(std::ssize(all.best), all.fitting);
    std::vector<std::pair<double, double>> points;
    for (const Plan& plan : all.best) points.emplace_back(plan.worst.total(), plan.step.seconds);
    EXPECT_EQ(places_of(bounded.front), brute_force_front(points));
    EXPECT_EQ(bounded.front.size(), places_of(bounded.front).size());
    EXPECT_LT(bounded.simulated, all.simulated);
    EXPECT_EQ(bounded.simulated + bounded.bounded, bounded.fitting);
  }
}

// The table has the best plans, then the front, and the fastest plan of each group.
TEST(Front, TheTableHasTheFastestOfEachChoice) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(gpt_of_layers(24), machine);
  PlanRequest request{.devices = 8, .batch = 48, .map = MapRequest{.plans = 1000}};
  const PlanResult result = find_plans(model, machine, request);
  request.map.reset();
  request.simulate_all = true;
  request.top = 1'000'000;
  for (const Plan& plan : find_plans(model, machine, request).best) {
    const auto same_choice = [&](const Plan& other) {
      const Strategy &a = plan.strategy, &b = other.strategy;
      return a.tensor == b.tensor && a.pipeline == b.pipeline && a.level == b.level &&
             a.recompute == b.recompute &&
             other.step.seconds <= plan.step.seconds * (1 + 1e-9);  // a bound has that rounding
    };
    EXPECT_TRUE(std::any_of(result.table.begin(), result.table.end(), same_choice))
        << to_string(plan.strategy);
  }
  for (std::size_t i = 0; i < result.best.size(); ++i)
    EXPECT_EQ(result.table.at(i).strategy, result.best[i].strategy);
  request.map = MapRequest{.points = 50, .plans = 7};
  request.simulate_all = false;
  request.top = 3;
  EXPECT_EQ(find_plans(model, machine, request).table.size(), 7U);
}

TEST(Front, TheMapSaysWhatEachPointIs) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(gpt_of_layers(24), machine);
  const PlanRequest request{
      .devices = 8, .batch = 48, .memory = 2e10, .map = MapRequest{.points = 100}};
  const PlanResult result = find_plans(model, machine, request);
  std::int64_t simulated = 0;
  for (const MapPoint& point : result.map) {
    simulated += point.is == MapPoint::Is::Simulated ? 1 : 0;
    EXPECT_EQ(point.is == MapPoint::Is::TooLarge, point.bytes > 2e10);
  }
  EXPECT_EQ(simulated, result.simulated);
  EXPECT_LE(std::ssize(result.map), result.simulated + 100);
  EXPECT_TRUE(find_plans(model, machine, {.devices = 8, .batch = 48}).map.empty());
}

}  // namespace
}  // namespace trestle::plan
