#pragma once

#include <vector>

#include "trestle/base/units.h"
#include "trestle/nn/loss.h"
#include "trestle/pipeline/partitioned_model.h"
#include "trestle/pipeline/stage_exchange.h"
#include "trestle/simulate/costs.h"

// What the stages need of memory, found out by running them one after the other.
namespace trestle::pipeline {

// One stage being profiled: what reaches it, and how to run its F and B once.
struct ProfiledStage {
  const Stage* stage = nullptr;
  std::vector<StageValue> inputs = {};
  // What comes back, as the stages behind make it: how a gradient lies in memory decides whether a
  // backward has to copy it. On the CPU; None where none comes.
  nn::Values output_gradients = {};
  const nn::Loss* loss = nullptr;  // last stage only
  at::Tensor target = {};
  at::Tensor loss_gradient = {};  // of a whole-batch loss: the model's output's, on the device

  // A pass whose inputs have just arrived: the stage owns them, as it does behind a transfer.
  Pass fresh() const;
  nn::Values gradients() const;  // output_gradients on the stage's device, likewise

  std::vector<StageValue> forward(Pass& pass, GraphMode mode) const;
  std::vector<StageValue> forward(Pass& pass, GraphMode mode, nn::BufferCopies& copies) const;

  // `output_gradients` as gradients() gives them. An additive loss is a part of it; a loss over the
  // whole batch is not.
  nn::Values backward(Pass& pass, const nn::Values& output_gradients) const;

  bool whole_batch_loss() const {
    return stage->is_last() && loss->kind == nn::Loss::Kind::WholeBatch;
  }
};

// Runs one micro-batch forwards through all stages and backwards through them again, each on its own
// device and worker, and adds the bytes to `costs`. `piece`: the model's inputs, and the target last.
// Returns the stages that are here with what reached them. Parameters must have no gradients that are
// still needed; afterwards they have others. Over ranks all call it; each has then the bytes of its
// own stages and of the routes that leave them, and the size of those that enter them.
std::vector<ProfiledStage> profile_memory(PartitionedModel& model, const nn::Values& piece,
                                          const nn::Loss& loss, StageExchange& exchange,
                                          simulate::Costs& costs);

Bytes bytes_of(const std::vector<at::Tensor>& tensors);

}  // namespace trestle::pipeline
