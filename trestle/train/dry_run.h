#pragma once

#include "trestle/recipe/recipe.h"
#include "trestle/train/progress/run_plan.h"
#include "trestle/train/trainer.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Plans what train() would do without training: the model's layers are measured on two small
// samples, and their costs are extrapolated to the recipe's inputs (plan/extrapolate.h). Needs no
// device, and of the data, if they exist, their number and the size of one. Throws UsageError for
// what train() would refuse. A precision that is slow on this CPU is reported to hooks.progress;
// layers are measured in bf16 then, which has fp16's sizes, and the times of those with parameters
// are multiplied by how much slower the measured layer is.
RunPlan plan_on_paper(const recipe::Recipe& recipe, const TrainHooks& hooks = {});

}  // namespace trestle::train
