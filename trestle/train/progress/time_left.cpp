#include "trestle/train/progress/time_left.h"

#include <algorithm>

namespace trestle::train {

void BatchTime::add(double seconds) {
  constexpr std::int64_t follows = 30;  // batches
  ++count_;
  const std::int64_t counted = std::clamp<std::int64_t>(count_ - 1, 1, follows);
  mean_ += (seconds - mean_) / static_cast<double>(counted);
}

std::optional<double> TimeLeft::of(const Work& work) const {
  if (work.training > 0 && training.count() < 2) return std::nullopt;
  if (work.validation > 0 && validation.count() < 1) return std::nullopt;
  return static_cast<double>(work.training) * training.seconds() +
         static_cast<double>(work.validation) * validation.seconds() +
         static_cast<double>(work.closings) * closing.seconds();
}

}  // namespace trestle::train
