#pragma once

#include <vector>

#include "trestle/models/model.h"
#include "trestle/nn/layers.h"
#include "trestle/recipe/recipe.h"
#include "trestle/tensor_parallel/split_plan.h"

// 'tensor' in [mesh] for models that a plan splits: all but transformers. Not installed.
namespace trestle::train {

// Throws UsageError for a key of [mesh] or [pipeline] that the model's split does not have, and for
// a rule in 'split_layers' that cannot be read. It makes no model.
void check_split_of_layers(const recipe::Recipe& recipe);

// Splits the layers of `model` over the ranks, by 'split_layers' of [mesh]; without it by the plan
// that a model of trestle comes with. It leaves a model alone that is split already: a transformer,
// and a program's own model that split itself over ModelOptions::tensor. All ranks call it; one
// rank alone changes nothing. Throws UsageError as tensor_parallel::split(), and where there is no
// plan.
tensor_parallel::SplitPlan split_layers(const recipe::Recipe& recipe, const nn::Layers& model,
                                        const models::ModelOptions& options,
                                        const models::OwnModels& own,
                                        const tensor_parallel::TensorRanks& ranks);

}  // namespace trestle::train
