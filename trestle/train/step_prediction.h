#pragma once

#include <optional>
#include <vector>

#include "trestle/data/loader.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/run_ranks.h"
#include "trestle/train/task.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// What the simulator expects of a step, measured on one batch without training on it.
struct Prediction {
  simulate::Costs costs;
  schedule::Timeline timeline;   // of a step that ends with the optimizer
  double seconds = 0;            // of forward, backward and transfers
  double optimizer_seconds = 0;  // what the optimizer adds
  double idle = 0;               // share of `seconds`, over all ranks
  std::vector<Bytes>
      stage_peaks;  // of each stage's device, all its stages together; 0 on plain cpu
};

// Nothing where even that does not fit the devices. Over ranks all call it, with as much of the batch as
// each has, and all get the same; there a device that it does not fit is every rank's error.
std::optional<Prediction> predict_step(const recipe::Recipe& recipe, Pipeline& pipeline,
                                       const Task& task, const data::Batch& batch,
                                       const RunRanks& ranks = {});

}  // namespace trestle::train
