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
namespace trestle::plan {

// One technique at its best: the fastest of its strategies that fits.
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

// One row for each technique of docs/survey.md: one device, model parallel, pipeline, DataParallel,
// DDP, ZeRO-1, ZeRO-2, ZeRO-3, HSDP, tensor parallel, activation checkpointing, offload. Each alone
// on all devices, without recomputation except where that is the technique. Tensor parallel takes
// the most ranks of a node that are legal, and stages or replicas of them. DataParallel is DDP with
// a broadcast of the weights before each step, half the time of the gradients' all-reduce; its
// devices are those of one node. PlanRequest::kept, `top` and `goal` are not used.
std::vector<TechniqueRow> compare_techniques(const PlannedModel& model, const Machine& machine,
                                             const PlanRequest& request);

}  // namespace trestle::plan
