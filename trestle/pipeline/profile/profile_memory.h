#pragma once

#include <vector>

#include "trestle/base/units.h"
#include "trestle/nn/loss.h"
#include "trestle/pipeline/execute/partitioned_model.h"
#include "trestle/pipeline/transport/stage_exchange.h"
#include "trestle/simulate/costs.h"

// The memory that the stages need, measured by running them one after the other.
namespace trestle::pipeline {

// A stage with the values that reach it, so that its F and B can run alone.
struct ProfiledStage {
  const Stage* stage = nullptr;
  std::vector<StageValue> inputs = {};
  // The gradients that the later stages made, on the CPU; None if there is none. Real ones, because
  // the memory layout of a gradient decides whether a backward copies it.
  nn::Values output_gradients = {};
  const nn::Loss* loss = nullptr;  // last stage only
  at::Tensor target = {};
  at::Tensor loss_gradient = {};  // of the model's output, for a whole-batch loss; on the device

  // A pass with copies of the inputs: the stage owns them, as after a transfer.
  Pass new_pass() const;
  nn::Values gradients() const;  // copies of output_gradients on the stage's device

  std::vector<StageValue> forward(Pass& pass, GraphMode mode) const;
  std::vector<StageValue> forward(Pass& pass, GraphMode mode, nn::BufferCopies& copies) const;

  // `output_gradients`: from gradients(). Computes an additive loss too, but no whole-batch loss.
  nn::Values backward(Pass& pass, const nn::Values& output_gradients,
                      BackwardPart part = BackwardPart::Whole) const;

  bool whole_batch_loss() const {
    return stage->is_last() && loss->kind == nn::Loss::Kind::WholeBatch;
  }
};

// Runs one micro-batch forwards and then backwards through all stages, each on its own device and
// worker, and adds the bytes to `costs`. `micro_batch`: the model's inputs, with the target as the
// last value. Returns the stages of this process. Overwrites the parameters' gradients. Over ranks
// all ranks call it: each adds the bytes of its own stages and of the routes that leave them, and
// the sizes of the routes that enter them. `threads`: of each operator on a virtual device, because
// a convolution's scratch memory depends on it; 0 for the threads of a step without lent cores.
// With `part` Inputs, also the memory between I and W.
std::vector<ProfiledStage> profile_memory(PartitionedModel& model, const nn::Values& micro_batch,
                                          const nn::Loss& loss, StageExchange& exchange,
                                          simulate::Costs& costs, BackwardPart part,
                                          int threads = 0);

Bytes bytes_of(const std::vector<at::Tensor>& tensors);

}  // namespace trestle::pipeline
