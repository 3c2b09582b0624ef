#pragma once

#include <cstdint>
#include <optional>

// How long a run still takes, from what it measured so far.
namespace trestle::train {

// What a batch takes: at first the mean, which then follows the last few tens, so that a machine that
// becomes slower is noticed. The first batch of a process does not count once there is a second: it
// takes memory and picks kernels.
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
  // Batches to train on and to validate with, and epochs to be closed (saves, pictures).
  struct Work {
    std::int64_t training = 0, validation = 0, closings = 0;
  };

  BatchTime training, validation, closing;

  // Seconds; nothing while one of the kinds of batches in it was not measured: training counts as
  // measured after its second batch. Closing an epoch counts nothing before it was measured.
  std::optional<double> of(const Work& work) const;
};

}  // namespace trestle::train
