#include "trestle/plan/search/best_plan.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/plan/search/memory_limit.h"
#include "trestle/plan/search/plan_report.h"

namespace trestle::plan {
namespace {

// All devices first.
std::vector<int> numbers_of_devices(const PlanRequest& request, DeviceUse use) {
  std::vector<int> numbers = {request.devices};
  if (use == DeviceUse::All) return numbers;
  while (numbers.back() % 2 == 0) numbers.push_back(numbers.back() / 2);
  if (numbers.back() != 1) numbers.push_back(1);
  return numbers;
}

// Smaller is better, first by the first.
std::pair<double, double> rank_of(const Plan& plan, Goal goal) {
  const double seconds = plan.step.seconds, bytes = plan.worst.total();
  if (goal == Goal::Memory) return {bytes, seconds};
  if (goal == Goal::Money) return {plan.money, bytes};
  return {seconds, bytes};
}

bool is_better(const Plan& plan, const Plan& other, Goal goal) {
  const auto mine = rank_of(plan, goal), its = rank_of(other, goal);
  return mine < its || (mine == its && plan.strategy.devices() < other.strategy.devices());
}

// The degrees of both; nothing if they contradict each other.
std::optional<Kept> both(const Kept& kept, const Kept& way) {
  Kept all = kept;
  bool agree = true;
  const auto add = [&](auto member) {
    const auto& mine = way.*member;
    if (!mine) return;
    agree = agree && (!(all.*member) || *(all.*member) == *mine);
    all.*member = mine;
  };
  add(&Kept::tensor);
  add(&Kept::pipeline);
  add(&Kept::data);
  add(&Kept::level);
  add(&Kept::replicate);
  add(&Kept::schedule);
  return agree ? std::optional(all) : std::nullopt;
}

std::vector<Preset> presets_of(const PlannedModel& model, const Machine& machine,
                               const PlanRequest& request, DeviceUse use) {
  std::vector<Preset> presets;
  for (const UsualWay& way : usual_ways(request.devices)) {
    const auto kept = both(request.kept, way.kept);
    if (!kept || (use == DeviceUse::All && way.devices != request.devices)) continue;
    PlanRequest own = request;
    own.devices = way.devices;
    own.kept = *kept;
    own.top = 1;
    if (!has_legal_strategy(model, own)) continue;
    const PlanResult result = find_plans(model, machine, own);
    Preset preset{.name = way.name};
    if (!result.best.empty()) preset.best = result.best.front();
    if (result.least_memory) preset.least_bytes = result.least_memory->worst.total();
    presets.push_back(std::move(preset));
  }
  return presets;
}

std::string words_of_bytes(double bytes) { return format_bytes(std::llround(bytes)); }

ReportOf report_of(const BestPlan& best, const PlannedModel& model, const Machine& machine) {
  return {.model = model, .machine = machine, .request = best.request, .result = best.result};
}

std::string preset_words(const Preset& preset) {
  if (!preset.best) return text(preset.name, " does not fit");
  return text(preset.name, " ", format_duration(preset.best->step.seconds));
}

}  // namespace

std::vector<UsualWay> usual_ways(int devices) {
  std::vector<UsualWay> ways = {
      {.name = "one device", .kept = {.tensor = 1, .pipeline = 1, .data = 1}}};
  if (devices == 1) return ways;
  const Kept data = {.tensor = 1, .pipeline = 1, .data = devices};
  for (const auto& [name, level] : {std::pair("DDP", 0), std::pair("ZeRO-1", 1),
                                    std::pair("ZeRO-2", 2), std::pair("ZeRO-3", 3)}) {
    ways.push_back({.name = name, .devices = devices, .kept = data});
    ways.back().kept.level = level;
    if (level > 0) ways.back().kept.replicate = 1;
  }
  if (devices >= 4 && devices % 2 == 0) {
    ways.push_back({.name = "HSDP", .devices = devices, .kept = data});
    ways.back().kept.level = 3;
    ways.back().kept.replicate = 2;
  }
  for (const auto& [name, schedule] : {std::pair("GPipe", "gpipe"), std::pair("1F1B", "1f1b")})
    ways.push_back({.name = name,
                    .devices = devices,
                    .kept = {.tensor = 1, .pipeline = devices, .data = 1, .schedule = schedule}});
  ways.push_back({.name = "tensor",
                  .devices = devices,
                  .kept = {.tensor = devices, .pipeline = 1, .data = 1}});
  return ways;
}

BestPlan find_best_plan(const PlannedModel& model, const Machine& machine,
                        const PlanRequest& request, DeviceUse use) {
  check(request);
  BestPlan best;
  std::vector<Plan> others;
  bool found = false;
  std::optional<PlanResult> of_all;
  for (const int devices : numbers_of_devices(request, use)) {
    PlanRequest own = request;
    own.devices = devices;
    own.all_devices = true;  // fewer devices have a search of their own
    own.top = std::max(request.top, 2);
    // Degrees that are kept need all of the devices.
    if (devices != request.devices && !has_legal_strategy(model, own)) continue;
    PlanResult result = find_plans(model, machine, own);
    best.fitting += result.fitting;
    others.insert(others.end(), result.best.begin(), result.best.end());
    if (!result.best.empty() &&
        (!found || is_better(result.best.front(), best.plan, request.goal))) {
      found = true;
      best.plan = result.best.front();
      best.request = own;
      best.result = result;
    }
    if (!of_all) of_all = std::move(result);
  }
  if (!found) {
    constexpr int columns = 100;
    throw UsageError(trim(plan_report({model, machine, request, *of_all}, columns)),
                     {.hint = "Give more devices or memory, or a smaller batch."});
  }
  for (const Plan& other : others)
    if (other.strategy != best.plan.strategy &&
        (!best.second || is_better(other, *best.second, request.goal)))
      best.second = other;
  best.presets = presets_of(model, machine, request, use);
  return best;
}

std::vector<std::string> reasons_of(const BestPlan& best, const PlannedModel& model,
                                    const Machine& machine) {
  const Plan& plan = best.plan;
  const double seconds = plan.step.seconds;
  std::string peak = text("peak ", words_of_bytes(plan.worst.total()));
  if (has_limit(best.result.available)) peak += text(" of ", words_of_bytes(best.result.available));
  std::vector<std::string> lines = {
      to_string(plan.strategy),
      text(format_duration(seconds), " per step by simulation (",
           format_duration(least_seconds(seconds, machine)), " to ",
           format_duration(most_seconds(seconds, machine)), ") · ", peak, " · the best of ",
           counted(best.fitting, "plan"), " that fit")};
  if (best.second) {
    const int devices = best.second->strategy.devices();
    lines.push_back(text("second: ", to_string(best.second->strategy),
                         devices != plan.strategy.devices()
                             ? text(" on ", counted(devices, "device"))
                             : std::string(),
                         ": ", why_lost(report_of(best, model, machine), *best.second, plan)));
  }
  std::vector<std::string> presets;
  for (const Preset& preset : best.presets) presets.push_back(preset_words(preset));
  if (!presets.empty()) lines.push_back("presets: " + join(presets, " · "));
  return lines;
}

std::string best_plan_json(const BestPlan& best, const PlannedModel& model,
                           const Machine& machine) {
  auto json = nlohmann::ordered_json::parse(plan_json(report_of(best, model, machine)));
  json["chosen"] = to_string(best.plan.strategy);
  if (best.second) {
    json["second"] = to_string(best.second->strategy);
    json["second_lost"] = why_lost(report_of(best, model, machine), *best.second, best.plan);
  }
  json["presets"] = nlohmann::ordered_json::array();
  for (const Preset& preset : best.presets) {
    nlohmann::ordered_json one = {{"name", preset.name}, {"fits", preset.best.has_value()}};
    if (preset.best) {
      one["strategy"] = to_string(preset.best->strategy);
      one["step_seconds"] = preset.best->step.seconds;
    }
    one["peak_bytes"] = std::llround(preset.best ? preset.best->worst.total() : preset.least_bytes);
    json["presets"].push_back(std::move(one));
  }
  return json.dump();
}

}  // namespace trestle::plan
