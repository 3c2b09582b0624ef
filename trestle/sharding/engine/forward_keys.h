#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/nn/graph.h"
#include "trestle/sharding/options/options.h"
#include "trestle/sharding/record/shard_report.h"
#include "trestle/sharding/reduce/gradient_reducer.h"

namespace trestle::sharding {

// The keys of random numbers (dropout) of each training forward: the step and the global
// micro-batch, so that ranks draw what the plain model's micro-batches draw.
class ForwardKeys {
 public:
  ForwardKeys(const ShardOptions& options, const comm::Group& ranks)
      : options_(options), ranks_(ranks) {}

  // Examples are numbered as if the ranks' batches were of the size of `inputs`.
  nn::RunKey next(const GradientReducer& reducer, const std::vector<at::Tensor>& inputs);
  // With ShardOptions::reproducible: this rank's micro-batches. UsageError without.
  std::vector<int> own_micro_batches() const;

  ShardProgress progress(const GradientReducer& reducer) const;
  void set_progress(const ShardProgress& progress, const GradientReducer& reducer);

 private:
  const ShardOptions& options_;
  comm::Group ranks_;
  std::int64_t first_step_ = 0;   // of the training, when the reducer had no steps
  std::int64_t forwards_ = 0;     // training forwards since the last reduced backward
  std::int64_t counted_for_ = 0;  // the step, or the backward, that they were counted in
};

}  // namespace trestle::sharding
