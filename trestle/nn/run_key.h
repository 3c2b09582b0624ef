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
  // The number of the micro-batch's first example among the examples of the whole step, over all
  // micro-batches, accumulated batches and replicas.
  std::int64_t example = 0;
};

// Active in the thread that runs a layer with a key. A pipeline inside the layer derives its keys
// from it, and keyed_dropout() its masks. A recomputed layer then draws the same numbers, no matter
// how often the inner pipeline has run meanwhile.
class LayerRun {
 public:
  // How far the layer's run has come.
  struct Place {
    std::uint64_t seed = 0;          // the layer's keyed_seed()
    std::uint64_t element_seed = 0;  // the same for all micro-batches
    std::int64_t example = 0;
    std::int64_t inner_runs = 0, draws = 0;
  };

  LayerRun(const RunKey& key, std::int64_t layer);
  // Continues a layer's run from that place, to recompute a part of the layer.
  explicit LayerRun(const Place& place);
  ~LayerRun();
  LayerRun(const LayerRun&) = delete;
  LayerRun& operator=(const LayerRun&) = delete;

  std::uint64_t seed() const { return place_.seed; }

  // All three: nothing outside of such a layer.
  //
  // The place of the layer that this thread is running.
  static std::optional<Place> place();
  // The key for the next run inside the layer: the first has step 0, the second 1.
  static std::optional<RunKey> next_inner_key();
  // The key for the next tensor of numbers, each of which is keyed by its example and its element.
  struct ElementKey {
    std::uint64_t seed = 0;
    std::int64_t example = 0;  // of the tensor's first row
  };
  static std::optional<ElementKey> next_element_key();

 private:
  Place place_;
  LayerRun* outer_;
};

}  // namespace trestle::nn
