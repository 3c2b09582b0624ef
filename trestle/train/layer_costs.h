#pragma once

#include <vector>

#include "trestle/models/model.h"
#include "trestle/plan/balance.h"
#include "trestle/recipe/recipe.h"

// What the layers of a recipe's model cost: the numbers behind "trestle balance".
namespace trestle::train {

class Progress;

struct LayerCosts {
  plan::LayerProfile profile;
  std::vector<Bytes> budgets;  // of the recipe's devices, one for each stage; 0 = no limit
  plan::SizeOptions sizes;     // of the recipe
  int examples = 0;            // of the micro-batch that was measured
};

// Measures them on the recipe's first device, with the first of the data (which are made where the
// recipe says so). Throws as train() does.
LayerCosts measure_layers(const recipe::Recipe& recipe, Progress& progress,
                          const models::OwnModels& own);

}  // namespace trestle::train
