#pragma once

#include <memory>
#include <string>

#include "trestle/plan/machine/machine.h"
#include "trestle/plan/search/planned_model.h"

// Models that are planned by their sizes, without a recipe.
namespace trestle::cli {

// `form` is "gpt", "llama", "model" (a well-known one by its name), "unet" or "resnet101", and
// `sizes` are as in `trestle plan --gpt SIZES`. Throws UsageError for other sizes.
std::unique_ptr<plan::PlannedModel> model_by_sizes(const std::string& form,
                                                   const std::string& sizes,
                                                   const plan::Machine& machine);

// The names of the well-known models, with commas.
std::string known_model_names();

}  // namespace trestle::cli
