#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trestle/plan/search/search.h"

// The one plan that a run takes, among the plans of a number of devices and of fewer.
namespace trestle::plan {

// Whether a plan uses all devices of the request, or may leave some idle: a small model is often
// faster on one device than on several.
enum class DeviceUse { All, Any };

// A usual way to use all devices, or one, and the best plan of this way.
struct Preset {
  std::string name;               // "ZeRO-1"
  std::optional<Plan> best = {};  // with the best micro-batch and recomputation; nothing fits: none
  double least_bytes = 0;         // if nothing fits: of the plan that needs the least memory
};

struct BestPlan {
  Plan plan = {};
  PlanRequest request = {};          // of the plan's number of devices
  PlanResult result = {};            // of that request
  std::optional<Plan> second = {};   // also one of another number of devices
  std::vector<Preset> presets = {};  // those that are legal, in the order of usual_ways()
  std::int64_t fitting = 0;          // plans that fit, of all numbers of devices
};

// A usual way: all or one of the devices, and the degrees that name it.
struct UsualWay {
  std::string name;
  int devices = 1;
  Kept kept = {};
};
// One device; DDP, ZeRO-1, ZeRO-2 and ZeRO-3 over all devices; HSDP of two rows; pipelines of all
// devices by GPipe and 1F1B; all devices as tensor ranks.
std::vector<UsualWay> usual_ways(int devices);

// The best plan by the request's goal, found as by find_plans(). With DeviceUse::Any plans of a
// half, a quarter and so on of the devices and of one device count too; of plans that are equally
// good the one with fewest devices is taken. It is never worse than a preset. Throws UsageError as
// find_plans(), and with its report if nothing fits.
BestPlan find_best_plan(const PlannedModel& model, const Machine& machine,
                        const PlanRequest& request, DeviceUse use);

// Lines for people: the plan, its predicted time and peak, why the second lost, and the presets.
std::vector<std::string> reasons_of(const BestPlan& best, const PlannedModel& model,
                                    const Machine& machine);

// plan_json() of the plan's request with "chosen", "second" and "presets".
std::string best_plan_json(const BestPlan& best, const PlannedModel& model, const Machine& machine);

}  // namespace trestle::plan
