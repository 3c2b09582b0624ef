#pragma once

#include "trestle/recipe/recipe.h"
#include "trestle/simulate/costs.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Changes the cost of a stage that one process trains to the cost of one rank under [mesh]:
// weights, gradients and optimizer state are sharded at its level, the reduction buffers are added,
// and the optimizer steps a shard. `trained` is the number of bytes of the stage's trained
// parameters; the optimizer's state has `states` times that size.
void size_sharded_state(const recipe::Recipe& recipe, Bytes trained, int states,
                        simulate::StageCost* cost);

// Memory of one stage while its optimizer steps.
struct OptimizerStepBytes {
  Bytes gradients = 0;
  Bytes largest = 0;  // of the tensors that the optimizer steps
};
// `largest`: bytes of the stage's largest parameter.
OptimizerStepBytes bytes_during_optimizer_step(const recipe::Recipe& recipe, Bytes trained,
                                               Bytes largest);

}  // namespace trestle::train
