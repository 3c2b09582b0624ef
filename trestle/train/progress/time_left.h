#pragma once

#include <cstdint>
#include <optional>

// Estimates the time left of a run from its measured batches.
namespace trestle::train {

// The duration of a batch: a mean at first, which then follows the last few tens of batches, so
// that a machine that becomes slower is noticed. The first batch of a process is replaced by the
// second one: it allocates memory and selects kernels.
class BatchTime {
 public:
  void add(double seconds);
  std::int64_t count() const { return count_; }
  double seconds() const { return mean_; }

 private:
  std::int64_t count_ = 0;
  double mean_ = 0;
};

class TimeLeft {
 public:
  // Batches of training and of validation, and epochs to be closed (saves, pictures).
  struct Work {
    std::int64_t training = 0, validation = 0, closings = 0;
  };

  BatchTime training, validation, closing;

  // Seconds; nothing before each kind of batch in `work` was measured, training with its second
  // batch. Closing an epoch counts 0 before it was measured.
  std::optional<double> of(const Work& work) const;
};

}  // namespace trestle::train
