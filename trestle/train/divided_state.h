#pragma once

#include "trestle/recipe/recipe.h"
#include "trestle/simulate/costs.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// What a stage holds for its training state where ranks share the batch: weights, gradients and what the optimizer
// remembers, divided as [mesh] says, and the buffers in which they go between the ranks. `trained` are the bytes of its
// parameters that are trained; the cost is that of one process, whose optimizer remembers `states` times as much.
void divide_state(const recipe::Recipe& recipe, Bytes trained, int states,
                  simulate::StageCost* cost);

// What of the gradients is there while the optimizer steps, and the largest tensor that it steps; of a stage whose largest
// parameter has `largest` bytes.
struct StepState {
  Bytes gradients = 0, largest = 0;
};
StepState state_of_step(const recipe::Recipe& recipe, Bytes trained, Bytes largest);

}  // namespace trestle::train
