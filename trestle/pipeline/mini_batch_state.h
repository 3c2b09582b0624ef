#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/device/clock.h"
#include "trestle/device/transfer.h"
#include "trestle/nn/batch_norm_statistics.h"
#include "trestle/nn/deferred_batch_norm.h"
#include "trestle/nn/loss.h"
#include "trestle/nn/run_key.h"
#include "trestle/nn/snapshot.h"
#include "trestle/pipeline/stage.h"
#include "trestle/pipeline/stage_hooks.h"
#include "trestle/pipeline/stage_list.h"
#include "trestle/pipeline/stage_optimizers.h"
#include "trestle/pipeline/stage_transport.h"
#include "trestle/pipeline/step_record.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/schedule.h"

namespace trestle::pipeline {

// What is run: given when a step begins, and then left as it is.
struct StepInputs {
  schedule::Schedule table;  // lowered
  nn::RunKey key = {};       // of micro-batch 0
  nn::BatchNormStatistics batch_norm = nn::BatchNormStatistics::EachMicroBatch;
  std::vector<nn::Values> batch = {};     // [micro-batch] the model's inputs, detached
  std::vector<bool> wants_gradient = {};  // [input of the model]
  // [input of the model] with which other one it shares memory, if it does
  std::vector<std::optional<nn::SharedWith>> shared = {};
  bool evaluating = false;  // forwards only, nothing is kept for a backward
  int kept_outputs = 0;     // of the model, the first so many
  // Intra-op threads of actions that name no number, in forward and backward; 0 = as they come.
  int threads = 0;

  // With a loss that adds up, B computes it from the micro-batch's output; a whole-batch loss is
  // taken at the first B of the last stage. Without a loss the caller gives the outputs' gradients.
  const nn::Loss* loss = nullptr;
  std::vector<at::Tensor> targets = {};  // [micro-batch]
  at::Tensor whole_target = {};          // of a whole-batch loss
  std::vector<double> shares = {};       // [micro-batch] its weight divided by the mini-batch's
  double gradient_scale = 1;             // of every gradient, not of the loss

  // Of data parallelism; both may be empty.
  comm::Group replicas = {};
  std::shared_ptr<StageHooks> hooks = {};

  // Of NORM and STEP; null where the table has none.
  std::shared_ptr<StageOptimizers> optimizers = {};
  StepEnd end = {};

  // Over ranks: called when a caller's backward begins on the last rank.
  std::function<void()> begin_backward = {};

  // Says what would make a stage fit that ran out of memory; may be empty.
  std::function<std::string(int stage)> suggest = {};

  bool whole_batch_loss() const { return loss && loss->kind == nn::Loss::Kind::WholeBatch; }
};

// What a stage has made for other stages. A value goes with the last route that carries it.
struct PendingSends {
  std::vector<StageValue> values;
  std::vector<int> routes;  // for each value: on how many it has still to go
};

// One micro-batch in one stage.
struct MicroBatchState {
  bool recomputed = false;  // does the table have an R for it?
  Pass pass;
  PendingSends activations;          // made by F, in the order of plan.outputs
  nn::Values output_gradients;       // that came in so far, in the order of plan.outputs
  PendingSends gradients;            // made by B, in the order of plan.inputs
  nn::Values model_input_gradients;  // by number of the model's input
};

// What one stage knows of the mini-batch. Only the rank that the stage is on touches it.
struct StageState {
  std::vector<MicroBatchState> micro_batches;
  nn::BufferCopies buffers;
  std::optional<nn::DeferredBatchNorm> batch_norms;  // where they are moved once, by all of it
  int forwards = 0;                                  // so many micro-batches have been through F
  int backwards = 0;                                 // ... and through B
  // Last stage only, [micro-batch]:
  std::vector<nn::Values> outputs;          // of the model, where they are kept
  std::vector<bool> outputs_want_gradient;  // of the model
  std::vector<at::Tensor> losses;           // detached
  std::vector<nn::Values> loss_gradients;   // of the model's outputs: from the caller, or from a
                                            // whole-batch loss
};

// One mini-batch on its way through the pipeline. Lives from the first F to the last B, which for a
// caller's own backward is longer than one call.
struct MiniBatchState {
  MiniBatchState(StepInputs the_inputs, const StageList& the_stages, const Cut& the_cut,
                 nn::Boundary& before_the_loss, device::CopyStreams& copy_streams,
                 device::Clock& the_clock, std::unique_ptr<StageTransport> the_transport);

  const StepInputs inputs;
  const StageList& stages;
  const Cut& cut;
  nn::Boundary& loss_boundary;
  device::CopyStreams& copies;
  const schedule::RouteTable routes;
  const std::unique_ptr<StageTransport> transport;
  device::Clock& clock;
  std::vector<StageState> stage_states;
  StepRecord record;
  bool one_thread =
      false;  // do all ranks' actions run in one thread, which must not wait for itself?

  const schedule::Schedule& table() const { return inputs.table; }
  int micro_batches() const { return inputs.table.micro_batches; }
  MicroBatchState& at(int stage, int micro_batch) {
    return stage_states[stage].micro_batches.at(micro_batch);
  }
  const MicroBatchState& at(int stage, int micro_batch) const {
    return stage_states[stage].micro_batches.at(micro_batch);
  }
  StageState& last() { return stage_states.back(); }
  nn::RunKey key(int micro_batch) const;
};

}  // namespace trestle::pipeline
