#pragma once

#include "trestle/models/model.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/data_sets/user_parts.h"
#include "trestle/train/progress/run_plan.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Plans what train() would do without training: the model's layers are measured on two small
// samples, and their costs are extrapolated to the recipe's inputs (plan/extrapolate.h). Needs no
// device, and of the data, if they exist, their number and the size of one. Throws UsageError for
// what train() would refuse.
RunPlan plan_on_paper(const recipe::Recipe& recipe, const models::OwnModels& own,
                      const UserParts& user_parts = {});

}  // namespace trestle::train
