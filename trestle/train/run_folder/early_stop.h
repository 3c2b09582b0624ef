#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "trestle/train/run_folder/metric_direction.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Ends a run whose metric no longer improves, as Lightning's EarlyStopping does. Its state is plain
// numbers.
class EarlyStop {
 public:
  // Stops after `patience` epochs in a row without a metric above the best so far + min_delta; 0 =
  // never.
  EarlyStop(std::int64_t patience, double min_delta) : patience_(patience), delta_(min_delta) {}

  // Adds the metric of one more epoch.
  void epoch_ends(double metric) {
    if (epochs_ == 0 || is_better(metric, best_, delta_)) {
      best_ = metric;
      bad_ = 0;
    } else {
      ++bad_;
    }
    ++epochs_;
  }
  bool stops() const { return patience_ > 0 && bad_ >= patience_; }
  std::int64_t bad_epochs() const { return bad_; }

  void save(std::map<std::string, double>& numbers) const {
    numbers["stop_best"] = best_;
    numbers["stop_bad_epochs"] = static_cast<double>(bad_);
    numbers["stop_epochs"] = static_cast<double>(epochs_);
  }
  void load(const std::map<std::string, double>& numbers) {
    const auto found = numbers.find("stop_epochs");
    if (found == numbers.end()) return;
    epochs_ = static_cast<std::int64_t>(found->second);
    best_ = numbers.at("stop_best");
    bad_ = static_cast<std::int64_t>(numbers.at("stop_bad_epochs"));
  }

 private:
  std::int64_t patience_;
  double delta_;
  double best_ = 0;
  std::int64_t bad_ = 0, epochs_ = 0;
};

}  // namespace trestle::train
