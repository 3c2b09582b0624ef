#pragma once

#include <string>

#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/early_stop.h"

// When a run has come to its end. Inside of the trainer. Not installed.
namespace trestle::train {

// Why there is nothing left to do, and what goes on all the same; "" where there is. `stands` is
// where the run was saved, `early` as it was then.
std::string why_finished(const recipe::Recipe& recipe, const checkpoint::TrainState& stands,
                         const EarlyStop& early);

// The flags that --resume needs to go on, all of them: "--epochs N --max-steps N --patience N" or
// fewer; "" where it goes on without.
std::string flags_to_go_on(const recipe::Recipe& recipe, const checkpoint::TrainState& stands,
                           const EarlyStop& early);

}  // namespace trestle::train
