#include "trestle/train/calibrate/timing.h"

#include <algorithm>

#include "trestle/base/median.h"
#include "trestle/base/stopwatch.h"
#include "trestle/device/stream_event.h"

namespace trestle::train {

Timed median_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const std::size_t count = samples.size();
  const double middle = median(samples);
  return {.seconds = middle, .spread = (samples[count * 3 / 4] - samples[count / 4]) / middle};
}

Timed time_runs(const std::function<void()>& run, at::Device device, const TimingBudget& budget) {
  constexpr int most_samples = 64, most_repeats = 10'000;
  const auto sample = [&](int repeats) {
    const Stopwatch watch;
    for (int i = 0; i < repeats; ++i) run();
    device::synchronize(device);
    return std::max(watch.seconds(), 1e-9) / repeats;
  };
  sample(1);
  const double first = sample(1);
  const int repeats = static_cast<int>(std::clamp(budget.sample / first, 1.0, 1.0 * most_repeats));
  std::vector<double> samples;
  const Stopwatch all;
  while (static_cast<int>(samples.size()) < budget.least ||
         (all.seconds() < budget.seconds && samples.size() < most_samples))
    samples.push_back(sample(repeats));
  return median_of(std::move(samples));
}

plan::Figure measured(double value, const Timed& timed, const std::string& from) {
  return {.value = value, .origin = plan::Origin::Measured, .from = from, .spread = timed.spread};
}

}  // namespace trestle::train
