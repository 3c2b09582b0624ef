#pragma once

#include <string>

#include "trestle/checkpoint/files/train_state.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/run_folder/early_stop.h"

// Whether a run is finished. Inside of the trainer. Not installed.
namespace trestle::train {

// Why the run is finished and which flags continue it; "" if it is not finished. `stands` is its
// checkpoint, `early` the state of early stopping there.
std::string why_finished(const recipe::Recipe& recipe, const checkpoint::TrainState& stands,
                         const EarlyStop& early);

// All flags that --resume needs to continue a finished run: "--epochs N --max-steps N --patience N"
// or fewer; "" if none is needed.
std::string resume_flags_of(const recipe::Recipe& recipe, const checkpoint::TrainState& stands,
                            const EarlyStop& early);

}  // namespace trestle::train
