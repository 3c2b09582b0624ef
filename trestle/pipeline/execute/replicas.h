#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/nn/loss.h"

// Several pipelines that share one mini-batch (PipelineOptions::replicas). If the group is not
// valid, there is one pipeline, and its share is the whole mini-batch.
namespace trestle::pipeline {

// This replica's share of the mini-batch.
struct ReplicaShare {
  std::int64_t first_micro_batch = 0;  // its number among the micro-batches of all replicas
  int micro_batches = 0;               // of all replicas
  std::int64_t first_example = 0;      // its number among the examples of all replicas
  std::int64_t examples = 0;           // of all replicas
  double of_weight = 1;                // this replica's weight divided by the weight of all
};

// Called when a step begins, on all ranks that hold the same stages. `sizes` are the examples of
// this replica's micro-batches. The weight counts only on the ranks of the last stage.
ReplicaShare share_of_replica(const comm::Group& replicas, const std::vector<std::int64_t>& sizes,
                              double weight);

// The least number of micro-batches that a replica has.
int fewest_micro_batches(const comm::Group& replicas, int own);

struct WeightedLoss {
  double loss = 0, weight = 0;
};

// The mean loss and the weight of all replicas. Called when a step ends, on the ranks of the last
// stage. A whole-batch loss is the same on all replicas already.
WeightedLoss mean_over_replicas(const comm::Group& replicas, nn::Loss::Kind kind, WeightedLoss own);

// The rows (dimension 0) of all replicas, concatenated.
struct GatheredRows {
  at::Tensor rows;
  std::int64_t begin = 0;  // of this replica's rows
};
GatheredRows gather_rows(const comm::Group& replicas, const at::Tensor& own);

}  // namespace trestle::pipeline
