#include "trestle/plan/search/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/plan/search/plan_map.h"

namespace trestle::plan {
namespace {

struct NamedGoal {
  std::string_view name;
  Goal goal;
};
constexpr std::array goal_words = {NamedGoal{"time", Goal::Time}, NamedGoal{"memory", Goal::Memory},
                                   NamedGoal{"money", Goal::Money}};

// A legal strategy before it is simulated.
struct Candidate {
  Strategy strategy;
  std::int64_t micro_batches = 0;
  Ledger worst;
  double bound = 0;  // seconds, of one that fits or is printed
};

// The number of choices in which two strategies differ.
int distance(const Strategy& a, const Strategy& b) {
  return (a.tensor != b.tensor) + (a.pipeline != b.pipeline) + (a.data != b.data) +
         (a.level != b.level) + (a.replicate != b.replicate) + (a.offload != b.offload) +
         (a.micro_batch != b.micro_batch) + (a.recompute != b.recompute) +
         (a.recompute_layers != b.recompute_layers) + (a.recompute_stages != b.recompute_stages) +
         (a.schedule != b.schedule) + (a.sequence_parallel != b.sequence_parallel) +
         (a.precision != b.precision);
}

auto family_of(const Strategy& strategy) {
  return std::tuple(strategy.tensor > 1, strategy.pipeline > 1, strategy.data > 1, strategy.level);
}

// FLOP/s of products in the strategy's precision.
double peak_of(const PlannedModel& model, const Machine& machine, const Strategy& strategy) {
  const Precision precision =
      strategy.precision == Precision::Own ? model.precisions().front() : strategy.precision;
  const bool fp32 = precision == Precision::Fp32 && machine.peak_fp32;
  return fp32 ? machine.peak_fp32->value : machine.peak.value;
}

std::string degrees_of(const PlanRequest& request) {
  const std::string kept = to_string(request.kept);
  return text(request.devices, request.devices == 1 ? " device" : " devices", " and a batch of ",
              request.batch, kept.empty() ? "" : " with " + kept);
}

// The numbers nearest to `number` that are good, one on each side.
std::vector<std::int64_t> nearest_good(std::int64_t number,
                                       const std::function<bool(std::int64_t)>& good) {
  constexpr std::int64_t most_tries = 2048;
  std::vector<std::int64_t> found;
  for (const int way : {-1, 1})
    for (std::int64_t i = 1; i <= std::min(number, most_tries); ++i)
      if (const std::int64_t other = number + way * i; other >= 1 && good(other)) {
        found.push_back(other);
        break;
      }
  return found;
}

class StrategySearch {
 public:
  StrategySearch(const PlannedModel& model, const Machine& machine, const PlanRequest& request)
      : model_(model), machine_(machine), request_(request) {
    result_.available = request.memory > 0 ? request.memory : machine.memory.value;
  }

  PlanResult run() {
    check();
    list();
    rank();
    if (request_.map) map();
    explain_missing();
    return std::move(result_);
  }

 private:
  void check() const {
    plan::check(request_);
    if (request_.goal == Goal::Money && !machine_.price_per_hour)
      throw UsageError(text("machine '", machine_.name, "' has no price"),
                       {.hint = "Add [price] per_hour = { value = 2.0, is = \"assumed\", from = "
                                "\"...\" } to a copy of its file."});
  }

  void list() {
    std::vector<Strategy> legal = legal_strategies(model_, request_, &result_.rules);
    if (request_.goal == Goal::Money && !request_.kept.data && !request_.all_devices) {
      PlanRequest fewer = request_;
      while (fewer.devices % 2 == 0) {
        fewer.devices /= 2;
        const auto more = legal_strategies(model_, fewer, nullptr);
        legal.insert(legal.end(), more.begin(), more.end());
      }
    }
    if (legal.empty()) refuse();
    result_.listed = std::ssize(legal);
    for (Strategy& strategy : legal) {
      const std::int64_t n = micro_batches_of(strategy, request_.batch);
      const Ledger worst = model_.worst_ledger(strategy, n);
      const bool fits = worst.total() <= result_.available;
      Candidate candidate{
          .strategy = std::move(strategy), .micro_batches = n, .worst = worst, .bound = 0};
      if (fits) candidate.bound = bound_of(candidate);
      (fits ? fitting_ : too_large_).push_back(std::move(candidate));
    }
    result_.fitting = std::ssize(fitting_);
  }

  double bound_of(const Candidate& candidate) const {
    const Strategy& strategy = candidate.strategy;
    constexpr double rounding = 1e-9;  // the simulator adds in another order
    return (1 - rounding) *
           least_step_seconds(candidate.micro_batches, strategy.chunks,
                              model_.costs_without_table(strategy, candidate.micro_batches));
  }

  [[noreturn]] void refuse() const {
    std::vector<std::string> reasons;
    for (const RuleCount& rule : result_.rules) reasons.push_back(text(rule.rule, ": ", rule.why));
    std::vector<std::string> hints;
    PlanRequest other = request_;
    if (model_.measures()) other.tensor_divides = request_.devices;
    const auto devices = nearest_good(request_.devices, [&](std::int64_t count) {
      if (count > most_devices) return false;
      other.devices = static_cast<int>(count);
      return has_legal_strategy(model_, other);
    });
    other.devices = request_.devices;
    const auto batches = nearest_good(request_.batch, [&](std::int64_t count) {
      if (count > most_examples) return false;
      other.batch = count;
      return has_legal_strategy(model_, other);
    });
    if (!devices.empty())
      hints.push_back(text(join(devices, " and "), " devices", on_nodes_of(devices.back())));
    if (!batches.empty()) hints.push_back(text("batches of ", join(batches, " and ")));
    const std::string kept = to_string(request_.kept);
    throw UsageError(
        text("no strategy is legal for ", degrees_of(request_), "\n", join(reasons, "\n")),
        {.hint = !hints.empty() ? text("Nearest that have one: ", join(hints, "; "), ".")
                 : kept.empty() ? "Give fewer devices, or a batch that they divide."
                                : "Leave out one of the degrees in --keep."});
  }

  // The rules of nodes were asked with nodes of this size, which depends on their number.
  std::string on_nodes_of(std::int64_t devices) const {
    if (std::max<std::int64_t>(devices, request_.devices) <= machine_.devices_per_node ||
        machine_.devices_per_node == 1)
      return {};
    return text(" on nodes of ", machine_.devices_per_node);
  }

  double price_of_second(const Strategy& strategy) const {
    return machine_.price_per_hour ? machine_.price_per_hour->value * strategy.devices() / 3600 : 0;
  }

  // Strategies are ranked by these, first by the first.
  std::pair<double, double> key_of(const Candidate& candidate, double seconds) const {
    switch (request_.goal) {
      case Goal::Memory:
        return {candidate.worst.total(), seconds};
      case Goal::Money:
        return {seconds * price_of_second(candidate.strategy), candidate.worst.total()};
      case Goal::Time:
        break;
    }
    return {seconds, candidate.worst.total()};
  }

  const schedule::Schedule& table_for(const Candidate& candidate) {
    const Strategy& strategy = candidate.strategy;
    auto& table = tables_[{strategy.schedule, strategy.pipeline, candidate.micro_batches}];
    if (table.stages == 0) table = table_of(strategy, candidate.micro_batches);
    return table;
  }

  Plan simulated(const Candidate& candidate) {
    const Strategy& strategy = candidate.strategy;
    const StrategyCosts costs = model_.costs(strategy, candidate.micro_batches);
    own_tables_ += costs.table ? 1 : 0;
    Plan plan{.strategy = strategy,
              .micro_batches = candidate.micro_batches,
              .step = predict_step(costs.table ? *costs.table : table_for(candidate),
                                   strategy.chunks, costs),
              .worst = candidate.worst};
    for (const LinkBytes& sent : model_.sent(strategy, candidate.micro_batches))
      if (sent.total() > plan.sent.total()) plan.sent = sent;
    plan.samples_per_second = static_cast<double>(request_.batch) / plan.step.seconds;
    plan.headroom = result_.available - candidate.worst.total();
    if (const double peak = peak_of(model_, machine_, strategy); peak > 0)
      plan.mfu = model_.flops(request_.batch) / (plan.step.seconds * strategy.devices() * peak);
    plan.money = plan.step.seconds * price_of_second(strategy);
    return plan;
  }

  // Each strategy that fits is simulated once.
  const Plan& plan_of(const Candidate& candidate) {
    const auto [known, added] = plans_.try_emplace(&candidate);
    if (added) known->second = simulated(candidate);
    return known->second;
  }

  // From the best bound on, until no other bound is better than the worst of the best.
  void rank() {
    std::stable_sort(fitting_.begin(), fitting_.end(), [&](const auto& a, const auto& b) {
      return key_of(a, a.bound) < key_of(b, b.bound);
    });
    std::vector<std::pair<std::pair<double, double>, Plan>> best;
    const auto top = static_cast<std::size_t>(request_.top);
    for (const Candidate& candidate : fitting_) {
      const bool worse =
          best.size() == top && key_of(candidate, candidate.bound).first > best.back().first.first;
      if (worse && !request_.simulate_all) break;
      Plan plan = plan_of(candidate);
      const auto key = key_of(candidate, plan.step.seconds);
      const auto place = std::upper_bound(best.begin(), best.end(), key,
                                          [](const auto& k, const auto& e) { return k < e.first; });
      best.insert(place, {key, std::move(plan)});
      if (best.size() > top) best.pop_back();
    }
    for (auto& [key, plan] : best) result_.best.push_back(std::move(plan));
    count_simulated();
  }

  void count_simulated() {
    result_.simulated = std::ssize(plans_);
    result_.bounded = result_.fitting - result_.simulated;
    result_.tables = std::ssize(tables_) + own_tables_;
  }

  void map() {
    const auto on_map = [](const Candidate& candidate, double bound) {
      return MapPoint{
          .strategy = candidate.strategy, .bytes = candidate.worst.total(), .seconds = bound};
    };
    std::vector<MapPoint> fitting, too_large;
    for (const Candidate& candidate : fitting_)
      fitting.push_back(on_map(candidate, candidate.bound));
    // Their bounds were not needed before: every n-th in the order of the list.
    const std::size_t every =
        too_large_.size() / static_cast<std::size_t>(std::max(request_.map->points, 1)) + 1;
    for (std::size_t i = 0; i < too_large_.size(); i += every)
      too_large.push_back(on_map(too_large_[i], bound_of(too_large_[i])));
    add_map({.fitting = std::move(fitting),
             .too_large = std::move(too_large),
             .batch = request_.batch,
             .plan_of = [&](std::size_t i) -> const Plan& { return plan_of(fitting_[i]); },
             .is_simulated = [&](std::size_t i) { return plans_.count(&fitting_[i]) > 0; }},
            *request_.map, &result_);
    count_simulated();
  }

  TooLarge too_large(const Candidate& candidate) {
    TooLarge large{.strategy = candidate.strategy,
                   .worst = candidate.worst,
                   .overshoot = candidate.worst.total() - result_.available,
                   .bound = candidate.bound};
    // The nearest strategy of each family, and then the nearest families.
    using Near = std::pair<std::pair<int, double>, const Candidate*>;
    std::map<decltype(family_of(Strategy())), Near> families;
    for (const Candidate& other : fitting_) {
      const Near near{{distance(candidate.strategy, other.strategy), other.bound}, &other};
      const auto [known, is_new] = families.emplace(family_of(other.strategy), near);
      if (!is_new && near.first < known->second.first) known->second = near;
    }
    std::vector<Near> near;
    for (const auto& [family, nearest] : families) near.push_back(nearest);
    constexpr std::size_t most_changes = 3;
    const auto end =
        near.begin() + static_cast<std::ptrdiff_t>(std::min(most_changes, near.size()));
    std::partial_sort(near.begin(), end, near.end(),
                      [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto at = near.begin(); at != end; ++at) large.changes.push_back(simulated(*at->second));
    return large;
  }

  void explain_missing() {
    std::map<decltype(family_of(Strategy())), Candidate*> families;
    for (Candidate& candidate : too_large_) {
      Candidate*& smallest = families[family_of(candidate.strategy)];
      if (smallest == nullptr || candidate.worst.total() < smallest->worst.total())
        smallest = &candidate;
    }
    for (const Candidate& candidate : fitting_) families.erase(family_of(candidate.strategy));
    std::vector<const Candidate*> missing;
    for (const auto& [family, candidate] : families) {
      candidate->bound = bound_of(*candidate);
      missing.push_back(candidate);
    }
    std::stable_sort(missing.begin(), missing.end(),
                     [](const auto* a, const auto* b) { return a->bound < b->bound; });
    constexpr std::size_t most_families = 3;
    if (missing.size() > most_families) missing.resize(most_families);
    for (const Candidate* candidate : missing) result_.too_large.push_back(too_large(*candidate));
    if (!fitting_.empty()) return;
    const auto least = std::min_element(
        too_large_.begin(), too_large_.end(),
        [](const auto& a, const auto& b) { return a.worst.total() < b.worst.total(); });
    least->bound = bound_of(*least);
    result_.least_memory = too_large(*least);
    result_.least_memory_step = simulated(*least).step;
    result_.least_devices = devices_that_fit();
  }

  std::optional<int> devices_that_fit() const {
    PlanRequest more = request_;
    if (model_.measures()) more.tensor_divides = request_.devices;
    for (const int factor : multiples_tried(model_)) {
      if (request_.devices > most_devices / factor) break;
      more.devices = request_.devices * factor;
      for (const Strategy& strategy : legal_strategies(model_, more, nullptr)) {
        const Ledger worst = model_.worst_ledger(strategy, micro_batches_of(strategy, more.batch));
        if (worst.total() <= result_.available) return more.devices;
      }
    }
    return std::nullopt;
  }

  const PlannedModel& model_;
  const Machine& machine_;
  const PlanRequest& request_;
  PlanResult result_;
  std::vector<Candidate> fitting_, too_large_;
  std::map<std::tuple<std::string, int, std::int64_t>, schedule::Schedule> tables_;
  std::int64_t own_tables_ = 0;  // of costs that come with one
  std::map<const Candidate*, Plan> plans_;
};

}  // namespace

Goal parse_goal(std::string_view word) { return choose("goal", word, goal_words).goal; }

std::string_view to_string(Goal goal) { return goal_words[static_cast<std::size_t>(goal)].name; }

std::vector<int> multiples_tried(const PlannedModel& model) {
  std::vector<int> multiples;
  for (int multiple = 2; multiple <= (model.measures() ? 8 : 16); ++multiple)
    multiples.push_back(multiple);
  if (!model.measures()) multiples.insert(multiples.end(), {24, 32, 48, 64});
  return multiples;
}

PlanResult find_plans(const PlannedModel& model, const Machine& machine,
                      const PlanRequest& request) {
  return StrategySearch(model, machine, request).run();
}

}  // namespace trestle::plan
