#pragma once

#include "trestle/models/model.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/run_plan.h"
#include "trestle/train/user_parts.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// What train() would do, on paper: the model's layers are measured on two small samples, and their
// costs taken on to the recipe's inputs (plan/extrapolate.h). Nothing of the devices is needed, and of
// the data nothing but, where they are there, their number and the size of one. Throws UsageError for
// what train() would refuse.
RunPlan plan_on_paper(const recipe::Recipe& recipe, const models::OwnModels& own,
                      const UserParts& user_parts = {});

}  // namespace trestle::train
