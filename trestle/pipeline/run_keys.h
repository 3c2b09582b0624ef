#pragma once

#include <cstdint>
#include <mutex>

#include "trestle/nn/run_key.h"

namespace trestle::pipeline {

// The keys of a pipeline's random numbers: it counts training steps, and the evaluations since the
// last one. A pipeline inside a layer of another pipeline derives its keys from that layer's key,
// so that recomputing the layer draws the same numbers; its own step number then does not change.
class RunKeys {
 public:
  explicit RunKeys(std::uint64_t seed) : seed_(seed) {}

  std::int64_t step_number() const;
  // `examples` of a step that the next call continues.
  void set_step_number(std::int64_t step, std::int64_t examples);

  // The key of the next step. With `first_micro_batch` > 0 it continues the last step, whose
  // examples come first.
  nn::RunKey next_step(std::int64_t first_micro_batch = 0);
  // Says how many examples that step has on all replicas, and how many of them are on earlier
  // replicas.
  void set_examples(std::int64_t of_all, std::int64_t of_earlier_replicas);
  // The key of the last step again.
  nn::RunKey last_step(std::int64_t first_micro_batch) const;
  // The key of the next evaluation: different from every step's and from every other evaluation's.
  nn::RunKey next_evaluation();

 private:
  const std::uint64_t seed_;
  mutable std::mutex mutex_;
  std::int64_t step_number_ = 0;
  std::int64_t evaluations_ = 0;  // since the step number changed
  // The first example of the last step on this replica, and that of the call which continues it.
  std::int64_t first_example_ = 0, next_example_ = 0;
};

}  // namespace trestle::pipeline
