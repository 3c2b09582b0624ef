#pragma once

#include <cstdint>
#include <optional>

// The complete key of a run's random numbers.
namespace trestle::nn {

// The random numbers of layer i are keyed by keyed_seed(seed, step, i, micro_batch), on the layer's
// device and on the CPU, in training and in evaluation mode.
struct RunKey {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;
};

// Active in the thread that runs a layer with a key, so that a pipeline inside the layer derives
// its keys from the outer run. A recomputed layer then draws the same numbers, no matter how often
// the inner pipeline has run meanwhile.
class LayerRun {
 public:
  explicit LayerRun(std::uint64_t layer_seed);  // the layer's keyed_seed()
  ~LayerRun();
  LayerRun(const LayerRun&) = delete;
  LayerRun& operator=(const LayerRun&) = delete;

  // The key for the next run inside the layer that this thread is running: the first has step 0,
  // the second 1. Nothing outside of such a layer.
  static std::optional<RunKey> next_inner_key();

 private:
  std::uint64_t seed_;
  std::int64_t inner_runs_ = 0;
  LayerRun* outer_;
};

}  // namespace trestle::nn
