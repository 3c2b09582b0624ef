#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "trestle/nn/layers.h"
#include "trestle/nn/run_key.h"
#include "trestle/nn/value.h"
#include "trestle/recompute/checkpoint_options.h"

// Activation checkpointing of a model's layers, chosen by number or by name.
namespace trestle::nn {

class CheckpointedSegment;

// A model of layers, some of which are recomputed in the backward. A torch::nn::Sequential works
// too (Layers accepts it), and skips may connect any two layers.
//
//   const auto model = Checkpointed::in_segments(6, net);    // 6 segments, the last one is kept
//   const auto other = Checkpointed::every(2, net);          // the second layer, the fourth, ...
//   const auto third = Checkpointed::units({"down1", "up4"}, net);
//   at::Tensor loss = model.forward(x).square().mean();      // as net.forward(x)
//
// Outputs, gradients and buffers equal those of net.forward(). Layers may write to their inputs as
// they may there: a segment that begins with such a layer gets a copy. Modules are shared with
// `layers`. The constructor resolves the wiring, which creates the modules. Copies of a
// Checkpointed share everything. Several threads may call forward().
class Checkpointed {
 public:
  // Cuts the layers into `segments` segments of equal size, or nearly so. The last one is kept,
  // since the backward would recompute it at once. Memory is least with about the square root of
  // the number of layers: it holds the boundaries of all segments and the intermediate results of
  // one (the paper in checkpoint.h). One segment keeps everything. Throws UsageError for less than
  // one segment, or for more than there are layers.
  static Checkpointed in_segments(int segments, const Layers& layers,
                                  const CheckpointOptions& options = {});
  // Recomputes layers k, 2k, 3k, ... counted from 1, each by itself, and keeps the rest. Throws
  // UsageError for k < 1.
  static Checkpointed every(int k, const Layers& layers, const CheckpointOptions& options = {});
  // Recomputes each unit by itself: a layer, or all layers of a nested model by its name. Throws
  // UsageError that suggests the nearest name for an unknown one, and for layers listed twice.
  static Checkpointed units(const std::vector<std::string>& names, const Layers& layers,
                            const CheckpointOptions& options = {});

  Values forward(const Values& inputs) const;
  at::Tensor forward(const at::Tensor& input) const;  // one tensor in, one out; else UsageError
  // With keyed random numbers, as nn::run(graph, inputs, key).
  Values forward(const Values& inputs, const RunKey& key) const;

  // The names of the recomputed layers, by units.
  std::vector<std::vector<std::string>> recomputed() const;

 private:
  explicit Checkpointed(CheckpointedSegment layers);
  Values run(const Values& inputs, const RunKey* key) const;

  std::shared_ptr<const CheckpointedSegment> layers_;
};

// Python's torch.utils.checkpoint.checkpoint_sequential. In a loop, keep a Checkpointed instead: it
// resolves the wiring once, and learns which segments write to their inputs.
at::Tensor checkpoint_sequential(int segments, const Layers& layers, const at::Tensor& input,
                                 const CheckpointOptions& options = {});

// A model of modules of one type in sequence, named "0", "1", ...
template <class Module>
Layers in_a_row(const std::vector<Module>& modules) {
  Layers layers;
  int number = 0;
  for (const Module& module : modules) layers.add(std::to_string(number++), module);
  return layers;
}

}  // namespace trestle::nn
