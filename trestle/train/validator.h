#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "trestle/nn/metrics.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/train/task.h"

// How good a model is, batch by batch: what a run's validation and `trestle evaluate` share. Not
// installed.
namespace trestle::train {

// What a batch counts for in the mean of a loss: an additive loss is a mean over what it weighs,
// nothing where all of a batch is ignored; a whole-batch loss has no weight of its own and counts
// examples.
double weight_of(const Task& task, const data::Batch& batch);

// Of replicas that each have a part of a batch: all parts' rows, one behind the other, of this one's. All of them call it, also
// one that has none, with None.
using AllRows = std::function<at::Tensor(const at::Tensor& own)>;

struct Scores {
  nn::Tally loss, metric;

  // Runs a batch through the model, without gradients. Returns its output, on the CPU and in fp32
  // whatever it was computed in. Over ranks the last one has it and counts; the others return None.
  // A whole-batch loss sees all rows, and counts as this part's examples.
  at::Tensor add(Pipeline& pipeline, const Task& task, const data::Batch& batch,
                 const AllRows& all_rows = {});

  // Where others have a part of a batch and this one has none.
  static void add_nothing(const Task& task, const AllRows& all_rows);
};

}  // namespace trestle::train
