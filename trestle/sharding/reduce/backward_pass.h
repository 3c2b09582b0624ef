#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "trestle/sharding/record/shard_recorder.h"
#include "trestle/sharding/reduce/rank_handshake.h"

namespace trestle::sharding {

// The state of one backward pass, from its first hook until its gradients are reduced.
struct BackwardPass {
  // The gradients of one flat group. Each vector has one element for each parameter.
  struct Arrivals {
    std::vector<bool> arrived;
    std::vector<int> counts;  // gradients that came
    std::size_t missing = 0;  // parameters whose first gradient has not come
    // grad() as it was, kept where this rank has weight 0: all ranks may have weight 0.
    std::vector<at::Tensor> before = {};
  };

  bool has_samples = true;          // false: this rank only takes part in the reductions
  bool accumulates = true;          // false: autograd::grad(), which leaves grad() alone
  bool sync = false;                // false: inside no_sync()
  bool more_micro_batches = false;  // this rank computes more of them before it reduces
  bool in_backward = false;
  std::weak_ptr<void> guard;  // expires when the backward ends, also when it throws
  std::vector<Arrivals> groups;
  RankHandshake handshake;
  ShardRecorder::Entry entry;
  std::optional<double> share;  // of this rank in the average
};

}  // namespace trestle::sharding
