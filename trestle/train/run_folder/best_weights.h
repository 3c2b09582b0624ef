#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

// Inside of the trainer. Not installed.
namespace trestle::train {

// Keeps the weights of the epochs with the best metrics in a folder of their own.
class BestWeights {
 public:
  // `most` = 1: nothing is kept here, since best.safetensors has the best weights.
  BestWeights(std::filesystem::path folder, std::int64_t most)
      : folder_(std::move(folder)), most_(most) {}

  // Calls `write` with the file of this epoch (from 1) if it is among the best, and removes the
  // file of the epoch that drops out. For equal metrics the earlier epoch is better.
  void add(std::int64_t epoch, double metric,
           const std::function<void(const std::filesystem::path&)>& write);

  void save(std::map<std::string, double>& numbers) const;
  void load(const std::map<std::string, double>& numbers);

 private:
  struct Kept {
    std::int64_t epoch;
    double metric;
  };
  std::filesystem::path file(std::int64_t epoch) const;
  void forget(std::int64_t epoch);
  void drop_the_rest();

  std::filesystem::path folder_;
  std::int64_t most_;
  std::vector<Kept> kept_;  // best first
};

}  // namespace trestle::train
