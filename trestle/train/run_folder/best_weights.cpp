#include "trestle/train/run_folder/best_weights.h"

#include <algorithm>
#include <cstdio>
#include <system_error>

#include "trestle/base/text.h"
#include "trestle/train/run_folder/metric_direction.h"

namespace trestle::train {

namespace fs = std::filesystem;

fs::path BestWeights::file(std::int64_t epoch) const {
  char name[48];
  std::snprintf(name, sizeof name, "epoch_%03lld.safetensors", static_cast<long long>(epoch));
  return folder_ / name;
}

void BestWeights::add(std::int64_t epoch, double metric,
                      const std::function<void(const fs::path&)>& write) {
  if (most_ <= 1) return;
  forget(epoch);  // kept before, when max_steps had cut the epoch
  const auto place = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& other) {
    return is_better(metric, other.metric);
  });
  if (place == kept_.end() && static_cast<std::int64_t>(kept_.size()) >= most_) return;
  fs::create_directories(folder_);
  write(file(epoch));
  kept_.insert(place, {epoch, metric});
  drop_the_rest();
}

void BestWeights::forget(std::int64_t epoch) {
  std::error_code ignored;
  if (std::erase_if(kept_, [&](const Kept& kept) { return kept.epoch == epoch; }) > 0)
    fs::remove(file(epoch), ignored);
}

void BestWeights::drop_the_rest() {
  std::error_code ignored;  // the file may have been deleted
  while (static_cast<std::int64_t>(kept_.size()) > most_) {
    fs::remove(file(kept_.back().epoch), ignored);
    kept_.pop_back();
  }
}

void BestWeights::save(std::map<std::string, double>& numbers) const {
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    numbers[text("kept_", i, "_epoch")] = static_cast<double>(kept_[i].epoch);
    numbers[text("kept_", i, "_metric")] = kept_[i].metric;
  }
}

void BestWeights::load(const std::map<std::string, double>& numbers) {
  kept_.clear();
  for (std::size_t i = 0;; ++i) {
    const auto epoch = numbers.find(text("kept_", i, "_epoch"));
    const auto metric = numbers.find(text("kept_", i, "_metric"));
    if (epoch == numbers.end() || metric == numbers.end()) break;
    kept_.push_back({static_cast<std::int64_t>(epoch->second), metric->second});
  }
  drop_the_rest();
}

}  // namespace trestle::train
