#pragma once

#include <vector>

#include "trestle/recipe/recipe.h"
#include "trestle/schedule/timeline.h"
#include "trestle/simulate/costs.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// The parameters of a stage, in bytes.
struct SteppedBytes {
  Bytes trained = 0;
  Bytes largest = 0;  // of one parameter
};

// The optimizer steps after all activations are freed. It updates one parameter at a time with this
// many temporary tensors of its size. The fused kernels, on the CPU and on virtual devices, have
// none; if weights are channels_last, one may be a gradient in their order. Elsewhere it is three
// for Adam with weight decay, which has the most, and for SGD one for weight decay and one for
// Nesterov's momentum.
int step_temporaries(const recipe::Recipe& recipe);

// Raises the devices' peaks of a predicted step to those of the optimizer's step. `stages` has one
// entry for each stage.
void add_optimizer_peaks(const recipe::Recipe& recipe, const std::vector<SteppedBytes>& stages,
                         const simulate::Costs& costs, schedule::Timeline* timeline);

}  // namespace trestle::train
