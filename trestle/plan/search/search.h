#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/plan/machine/machine.h"
#include "trestle/plan/search/planned_model.h"
#include "trestle/plan/search/step_prediction.h"

// Lists every legal strategy, and ranks those that fit.
//
//   const plan::PlannedGpt model(plan::parse_gpt("layers=48,..."), machine);
//   const plan::PlanResult result =
//       plan::find_plans(model, machine, {.devices = 512, .batch = 1536});
//   result.best.front().strategy;
namespace trestle::plan {

enum class Goal {
  Time,    // the fastest step
  Memory,  // the smallest peak, then the fastest step
  // The cheapest step. The search also tries a half, a quarter, ... of the devices, unless `data`
  // is kept or PlanRequest::all_devices is set.
  Money,
};
// Throws UsageError for any word but "time", "memory" and "money".
Goal parse_goal(std::string_view word);
std::string_view to_string(Goal goal);

// The parts of PlanResult beside the best plans, for a picture of all strategies.
struct MapRequest {
  int points = 2000;  // at most, beside the plans that are simulated
  int plans = 120;    // the most of PlanResult::table
  // Stages times micro-batches of the strategies that are simulated for the table alone. When they
  // are used up, it has no more plans.
  std::int64_t cells = 400'000;
};

struct PlanRequest {
  int devices = 1;
  std::int64_t batch = 1;  // examples of a step
  Goal goal = Goal::Time;
  Kept kept = {};
  int top = 5;  // the number of plans, from the best
  // Bytes of a device that a plan may use. 0 = not given: those of the machine's memory.
  double memory = 0;
  bool all_devices = false;  // Goal::Money too: only plans that use all devices
  // Simulates every strategy that fits, whatever its bound is. For tests.
  bool simulate_all = false;
  // Only numbers of tensor ranks that divide this, unless one is kept; 0 = all.
  int tensor_divides = 0;
  std::optional<MapRequest> map = {};
};

struct Plan {
  Strategy strategy = {};
  std::int64_t micro_batches = 0;  // of each data rank
  StepPrediction step = {};
  Ledger worst = {};    // of the stage that needs the most memory
  LinkBytes sent = {};  // by a rank of the stage whose ranks send most
  double samples_per_second = 0;
  double headroom = 0;  // bytes that the worst stage's device has left
  double mfu = 0;       // flops / (seconds x devices x peak in the strategy's precision)
  double money = 0;     // of a step; 0 without a price
};

// Strategies that break one rule.
struct RuleCount {
  std::string rule;
  std::string why;  // of the first of them
  std::int64_t strategies = 0;
};

// A strategy that does not fit, and the plans nearest to it that do.
struct TooLarge {
  Strategy strategy = {};
  Ledger worst = {};
  double overshoot = 0;  // bytes
  double bound = 0;      // its least seconds per step
  // Up to three, each of another family, by the number of choices that change.
  std::vector<Plan> changes = {};
};

// A legal strategy on a map of time against memory.
struct MapPoint {
  enum class Is {
    Simulated,  // it fits, and `seconds` is its step
    Bounded,    // it fits, and its step takes `seconds` or longer
    TooLarge,   // it does not fit; `seconds` is a bound too
  };
  Strategy strategy = {};
  double bytes = 0;  // of the fullest device
  double seconds = 0;
  Is is = Is::Simulated;
};

struct PlanResult {
  std::vector<Plan> best = {};  // from the best; at most PlanRequest::top
  double available = 0;         // bytes of a device
  std::int64_t listed = 0;      // legal strategies
  std::int64_t fitting = 0;
  std::int64_t simulated = 0;
  std::int64_t bounded = 0;  // not simulated: their bounds are worse than the last of `best`, and
                             // than the front if there is one
  std::int64_t tables = 0;   // distinct ones
  std::vector<RuleCount> rules = {};
  // For families of which no strategy fits, the one that needs the least memory; at most three, the
  // fastest first by their bounds. A family has the same degrees above 1 and the same level.
  std::vector<TooLarge> too_large = {};
  // If nothing fits: the strategy that needs the least memory, its time if it fitted, and the least
  // of multiples_tried() times the devices on which something fits.
  std::optional<TooLarge> least_memory = {};
  StepPrediction least_memory_step = {};
  std::optional<int> least_devices = {};
  // With PlanRequest::map. The front: plans that no other strategy beats in both time and memory,
  // the smallest first. It is exact: a strategy that was not simulated is slower than a smaller one
  // by its bound. The table: `best`, then the front, then of each combination of degrees, level and
  // recomputation the fastest plan. The map has all simulated plans, and of all other strategies
  // one for each place.
  std::vector<Plan> front = {};
  std::vector<Plan> table = {};
  std::vector<MapPoint> map = {};
};

// Throws UsageError if no strategy is legal, as with degrees that contradict each other: the rules
// that reject them, and the nearest numbers of devices and examples that have one. Throws it also
// as check(), and for Goal::Money without a price.
PlanResult find_plans(const PlannedModel& model, const Machine& machine,
                      const PlanRequest& request);

inline constexpr int most_devices = 1 << 20;
inline constexpr std::int64_t most_examples = std::int64_t{1} << 30;  // a step has no more

// Throws UsageError for fewer than 1 or more than most_devices, for fewer than 1 or more than
// most_examples, for a number of plans below 1, for negative memory and for what is kept (check()
// of strategy.h).
void check(const PlanRequest& request);

// The legal strategies of a request, in a fixed order. `rules` counts the strategies that are not;
// a rule of two degrees counts once for all that have both. nullptr = no counts. Throws as check().
std::vector<Strategy> legal_strategies(const PlannedModel& model, const PlanRequest& request,
                                       std::vector<RuleCount>* rules);
// The multiples of the devices on which the search tries whether something fits: 2 to 16, 24, 32,
// 48 and 64, or 2 to 8 with a model that measures.
std::vector<int> multiples_tried(const PlannedModel& model);
bool has_legal_strategy(const PlannedModel& model, const PlanRequest& request);

}  // namespace trestle::plan
