#pragma once

#include <cstdint>
#include <optional>

// Inside of the trainer. Not installed.
namespace trestle::train {

// The mean duration of a batch and of an update of the weights in one call of train() or resume().
// The first steps warm up caches and allocators and are not counted.
class StepTimer {
 public:
  // A batch: forward, backward and, where it ends a step, the update.
  void add_batch(double seconds) {
    if (steps_ < warm_up_steps) return;
    ++batches_;
    batch_seconds_ += seconds;
  }
  // Whether to time the update of the step that ends now: reading its timeline takes time itself.
  bool samples_update() const {
    return steps_ >= warm_up_steps && (updates() < 32 || updates() % 16 == 0);
  }
  void add_step(const std::optional<double>& update_seconds) {
    ++steps_;
    if (!update_seconds) return;
    ++samples_;
    update_seconds_ += *update_seconds;
  }

  std::int64_t steps() const { return steps_; }  // all of this call
  // Means; 0 before anything was counted.
  double batch_seconds() const {
    return mean(batch_seconds_ - static_cast<double>(updates()) * optimizer_seconds(), batches_);
  }
  double optimizer_seconds() const { return mean(update_seconds_, samples_); }

 private:
  static constexpr std::int64_t warm_up_steps = 2;
  static double mean(double sum, std::int64_t count) {
    return count > 0 ? sum / static_cast<double>(count) : 0;
  }
  std::int64_t updates() const { return steps_ > warm_up_steps ? steps_ - warm_up_steps : 0; }

  std::int64_t steps_ = 0, batches_ = 0, samples_ = 0;
  double batch_seconds_ = 0, update_seconds_ = 0;
};

}  // namespace trestle::train
