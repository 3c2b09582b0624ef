#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trestle/plan/machine/machine.h"
#include "trestle/plan/search/planned_model.h"
#include "trestle/plan/search/search.h"

// The techniques of distributed training side by side, for one model on one set of devices: the
// numbers of `trestle choose`.
//
//   const auto rows = plan::compare_techniques(model, machine, {.devices = 8, .batch = 64});
//   for (const plan::TechniqueRow& row : rows)
//     std::cout << row.name << ": " << (row.plan ? row.plan->step.seconds : 0) << " s\n";
//   plan::best_of_all(rows, model, machine, {.devices = 8, .batch = 64}).result.best.front();
namespace trestle::plan {

// One technique at its best: of its strategies that fit, the best by the goal of the request.
struct TechniqueRow {
  std::string name = {};  // "ZeRO-2"
  std::string when = {};  // in which situation it is the choice
  // `trestle plan --devices ... --keep ...` with these finds the row's plan again, except for
  // DataParallel, whose row adds the copies of its weights.
  int devices = 1;
  Kept kept = {};
  std::optional<Plan> plan = {};
  // If none fits: the strategy that needs the least memory, and the step that it would take.
  std::optional<TooLarge> too_large = {};
  StepPrediction too_large_step = {};
  std::string not_legal = {};  // if no strategy is legal: the first rule that they break
};

// Throws UsageError for a degree, a level of ZeRO, rows of HSDP and offload: techniques differ in
// these.
void check_kept_of_techniques(const Kept& kept);

// Whether `plan` is better than `other`: its step is faster or, by the goal, its peak is smaller or
// its step is cheaper. The faster one of two plans with one peak is better.
bool is_ahead(const Plan& plan, const Plan& other, Goal goal);

// One row for each technique of docs/survey.md: one device, model parallel, pipeline, DataParallel,
// DDP, ZeRO-1, ZeRO-2, ZeRO-3, HSDP, tensor parallel, activation checkpointing, offload. Each alone
// on all devices, without recomputation and without offload except where that is the technique.
// Tensor parallel takes the most ranks of a node that are legal, and stages or replicas of them.
// Checkpointing is not legal for a model that recomputes nothing in one stage. Offload is that of
// ZeRO-1, 2 or 3 without rows of HSDP. DataParallel is DDP with a broadcast of the weights before
// each step, half the time of the gradients' all-reduce; its devices are those of one node.
// PlanRequest::kept leaves out strategies of a technique; `recompute` that it has is that of all
// techniques. A technique that it contradicts is not legal. PlanRequest::top is not used. Throws
// UsageError as check_kept_of_techniques() and, for Goal::Money without a price, as find_plans().
std::vector<TechniqueRow> compare_techniques(const PlannedModel& model, const Machine& machine,
                                             const PlanRequest& request);

// The best of all techniques and of all their combinations.
struct BestOfAll {
  PlanRequest request = {};  // its devices are those that the plan uses
  PlanResult result = {};    // answers that request; if nothing fits, it has the most devices
};

// The best plan, by the goal, of find_plans() on all devices, on a half of them, a quarter and so
// on, and on one; of equally good plans the one with fewest devices. No row that fits is better.
// `rows` are those of compare_techniques() for the same model, machine and request. Throws
// UsageError as find_plans() if none of these numbers of devices has a legal strategy.
BestOfAll best_of_all(const std::vector<TechniqueRow>& rows, const PlannedModel& model,
                      const Machine& machine, const PlanRequest& request);

}  // namespace trestle::plan
