#pragma once

#include <optional>

#include "trestle/nn/layers.h"
#include "trestle/precision/layer_speed.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/progress/progress.h"
#include "trestle/train/trainer.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Measures a layer if the recipe computes in 16 bits on a CPU. Reports a slow precision to
// `progress`, with the way out, and returns it; the run computes in it all the same. A CPU without
// instructions for the precision that is not slower is reported too.
std::optional<precision::SlowPrecision> report_slow_precision(const recipe::Recipe& recipe,
                                                              const nn::Layers& model,
                                                              const TrainHooks& hooks,
                                                              Progress& progress);

}  // namespace trestle::train
