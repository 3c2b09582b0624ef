#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trestle/comm/group.h"
#include "trestle/pipeline/pipeline.h"

// Several pipelines that take parts of one mini-batch. Where the group is not valid there is one, and it has all.
namespace trestle::pipeline {

struct ReplicaShare {
  std::int64_t first_micro_batch = 0;  // of this one among all
  int micro_batches = 0;               // of all
  double of_weight = 1;                // this one's weight divided by all
};

// When a step begins, called by the ranks that have the same stages. The weight is known where the last stage is, and is of
// no matter elsewhere.
ReplicaShare share_of_replica(const comm::Group& replicas, int micro_batches, double weight);

// When it is done, on the ranks of the last stage: the loss and the weight of all. Of a whole-batch loss each has it already.
void add_up_over_replicas(const comm::Group& replicas, bool whole_batch_loss, StepResult& result);

// All replicas' rows of dimension 0, one behind the other; this one's begin at `begin`.
at::Tensor gather_rows(const comm::Group& replicas, const at::Tensor& own, std::int64_t* begin);

}  // namespace trestle::pipeline
