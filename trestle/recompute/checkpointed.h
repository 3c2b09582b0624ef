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

// A model of layers in a row, some of which are run again in the backward. A torch::nn::Sequential is
// one (Layers takes it), and skips may cross from anywhere to anywhere.
//
//   const auto model = Checkpointed::in_segments(6, net);    // 6 pieces, the last of them kept
//   const auto other = Checkpointed::every(2, net);          // the second layer, the fourth, ...
//   const auto third = Checkpointed::units({"down1", "up4"}, net);
//   at::Tensor loss = model.forward(x).square().mean();      // as net.forward(x)
//
// Outputs, gradients and buffers are those of net.forward(). Layers may write to their inputs wherever
// they may there: a segment that begins with one gets a copy. Modules are shared with `layers`, and its
// wiring is resolved once, here, which makes the modules. Copies of a Checkpointed share all. Its
// forward() may be called from several threads.
class Checkpointed {
 public:
  // `segments` pieces as even as can be. The last one is kept, since it would be run again at once. With
  // about as many as the square root of the number of layers, memory is least: the boundaries of all,
  // and the insides of one (the paper in checkpoint.h). One segment keeps everything. Throws UsageError
  // for less than one, or more than there are layers.
  static Checkpointed in_segments(int segments, const Layers& layers,
                                  const CheckpointOptions& options = {});
  // Layers k, 2k, 3k, ... counted from 1, each by itself; the others are kept. Throws UsageError for
  // k < 1.
  static Checkpointed every(int k, const Layers& layers, const CheckpointOptions& options = {});
  // Each unit by itself: a layer, or all layers of a nested model by its name. Throws UsageError for a
  // name that is neither, with the nearest one, and for layers that are named twice.
  static Checkpointed units(const std::vector<std::string>& names, const Layers& layers,
                            const CheckpointOptions& options = {});

  Values forward(const Values& inputs) const;
  at::Tensor forward(const at::Tensor& input) const;  // one tensor in, one out; else UsageError
  // With keyed random numbers, as nn::run(graph, inputs, key).
  Values forward(const Values& inputs, const RunKey& key) const;

  // The names of the layers that are run again, by units.
  std::vector<std::vector<std::string>> recomputed() const;

 private:
  struct Plan;
  struct Span;
  Checkpointed(const Layers& layers, const std::vector<Span>& spans,
               const CheckpointOptions& options);
  Values run(const Values& inputs, const RunKey* key) const;

  std::shared_ptr<Plan> plan_;
};

// Python's torch.utils.checkpoint.checkpoint_sequential. A loop keeps a Checkpointed instead, which
// resolves the wiring once, and learns which segments write to their inputs.
at::Tensor checkpoint_sequential(int segments, const Layers& layers, const at::Tensor& input,
                                 const CheckpointOptions& options = {});

// Modules of one kind in a row, "0", "1", ..., as a model.
template <class Module>
Layers in_a_row(const std::vector<Module>& modules) {
  Layers layers;
  int number = 0;
  for (const Module& module : modules) layers.add(std::to_string(number++), module);
  return layers;
}

}  // namespace trestle::nn
