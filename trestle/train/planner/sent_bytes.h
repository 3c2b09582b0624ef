#pragma once

#include <vector>

#include "trestle/plan/search/link_bytes.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/layer_costs.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// One for each rank of the pipeline: the bytes that it sends in a step, which step_on_paper() made
// of this cut. The collectives are direct exchanges (comm/backends/direct_collectives.cpp): a rank
// sends the same to each other rank of its group, and what goes to another host counts as between
// nodes. Activations and gradients of skips, and the values and gradients of tied parameters, count
// as messages between stages.
std::vector<plan::LinkBytes> bytes_sent_by_stages(const recipe::Recipe& recipe,
                                                  const LayerCosts& costs,
                                                  const std::vector<int>& balance,
                                                  const StepOnPaper& step);

}  // namespace trestle::train
