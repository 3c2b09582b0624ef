#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "trestle/data/dataset.h"

namespace trestle::data {

enum class RandomTargets {
  OneHot,  // float [classes]: 1 at the class, 0 elsewhere, for mean_squared_error
  Class,   // int64 scalar, for cross_entropy
  Normal,  // float [classes], normal numbers: nothing to learn, as in a toy regression
};

// "one_hot", "class", "normal". Throws UsageError for another word.
RandomTargets parse_random_targets(std::string_view word);

struct RandomTensorsOptions {
  std::vector<std::int64_t> shape = {};  // of an input: {3, 128, 128}
  std::int64_t classes = 0;
  std::int64_t count = 0;  // examples
  RandomTargets targets = RandomTargets::OneHot;
  std::uint64_t seed = 42;
};

// Random numbers to measure a step with, as in PyTorch's tutorial on model parallelism. There are
// no files to read.
//
//   RandomTensors images({.shape = {3, 128, 128}, .classes = 1000, .count = 360});
//   at::Tensor x = images.get(0).input;   // float [3, 128, 128], normal numbers
//   at::Tensor y = images.get(0).target;  // float [1000], one of them is 1
//
// Example i depends only on the seed and i. Throws UsageError for an empty shape and for sizes
// below 1; get() throws it for an index out of range.
class RandomTensors : public Dataset {
 public:
  explicit RandomTensors(RandomTensorsOptions options);

  std::int64_t size() const override { return options_.count; }
  Sample get(std::int64_t index) const override;

 private:
  RandomTensorsOptions options_;
};

}  // namespace trestle::data
