#pragma once

#include <cstdint>

// Inside of the trainer. Not installed.
namespace trestle::train {

// The mean duration of a batch and of an optimizer step in one call of train() or resume(). The first
// steps warm up caches and allocators and are not counted.
class StepTimer {
 public:
  // Forward and backward of one batch.
  void add_batch(double seconds) {
    if (steps_ < warm_up_steps) return;
    ++batches_;
    batch_seconds_ += seconds;
  }
  // The optimizer's work that ends a step.
  void add_step(double seconds) {
    if (++steps_ <= warm_up_steps) return;
    step_seconds_ += seconds;
  }

  std::int64_t steps() const { return steps_; }  // all of this call
  // Means; 0 before anything was counted.
  double batch_seconds() const { return mean(batch_seconds_, batches_); }
  double optimizer_seconds() const { return mean(step_seconds_, steps_ - warm_up_steps); }

 private:
  static constexpr std::int64_t warm_up_steps = 2;
  static double mean(double sum, std::int64_t count) {
    return count > 0 ? sum / static_cast<double>(count) : 0;
  }

  std::int64_t steps_ = 0, batches_ = 0;
  double batch_seconds_ = 0, step_seconds_ = 0;
};

}  // namespace trestle::train
