#pragma once

#include <string>

#include "trestle/data/dataset.h"
#include "trestle/models/model.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/loss.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/data_sets/user_parts.h"

// Whether a recipe's model and loss take the recipe's data, found before any training. Not
// installed.
namespace trestle::train {

// Runs the model and the loss on one example; a large image is represented by a small one. Throws
// UsageError as the first step of a training would: for a wrong number of channels or classes, for
// targets of another shape or type. The model must be on the CPU, and is in training mode
// afterwards.
void check_example(const recipe::Recipe& recipe, const nn::Layers& model, const nn::Loss& loss,
                   const data::Sample& example);

// The same for the recipe's own model and data, for `trestle data check`: the message, or "" if all
// fits or no example can be read.
std::string problem_of_model(const recipe::Recipe& recipe, const models::OwnModels& models = {},
                             const UserParts& own = {});

}  // namespace trestle::train
