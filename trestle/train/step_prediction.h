#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trestle/data/loader.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/progress/run_plan.h"
#include "trestle/train/run_ranks.h"
#include "trestle/train/task.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// The predicted step of a run, from costs that are measured on one batch without training on it.
struct Prediction {
  simulate::Costs costs;
  schedule::Timeline timeline;       // of a step that ends with the optimizer
  double seconds = 0;                // of forward, backward and transfers
  double optimizer_seconds = 0;      // what the optimizer adds
  double idle = 0;                   // share of `seconds`, over all ranks
  double communication_seconds = 0;  // what data parallelism adds to `seconds`, which has it
  TensorTraffic tensor;              // its exposed messages are in `seconds`
  std::string network;               // the link between hosts in words; empty for one host
  double bytes_sent = 0;  // by a rank for data parallelism, in one batch; the most of all stages
  // The peak of each stage's device, for all its stages together; 0 on a plain CPU.
  std::vector<Bytes> stage_peaks;
};

// Returns nothing if the devices have no room for the measurement. Over ranks all call it with
// their share of the batch, all get the same prediction, and a device without room throws on all
// ranks.
std::optional<Prediction> predict_step(const recipe::Recipe& recipe, Pipeline& pipeline,
                                       const Task& task, const data::Batch& batch,
                                       const RunRanks& ranks = {});

}  // namespace trestle::train
