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
#include "trestle/pipeline/execute/stage.h"
#include "trestle/pipeline/execute/stage_hooks.h"
#include "trestle/pipeline/execute/stage_list.h"
#include "trestle/pipeline/execute/stage_optimizers.h"
#include "trestle/pipeline/execute/step_record.h"
#include "trestle/pipeline/execute/tied_copies.h"
#include "trestle/pipeline/transport/stage_transport.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/schedule.h"

namespace trestle::pipeline {

// The arguments of a run. They do not change once the run has begun.
struct StepInputs {
  schedule::Schedule table;              // lowered
  nn::RunKey key = {};                   // of micro-batch 0
  std::vector<std::int64_t> sizes = {};  // [micro-batch] its examples
  nn::BatchNormStatistics batch_norm = nn::BatchNormStatistics::EachMicroBatch;
  std::vector<nn::Values> batch = {};     // [micro-batch] the model's inputs, detached
  std::vector<bool> wants_gradient = {};  // [input of the model]
  // [input of the model] the input that it shares memory with, if there is one
  std::vector<std::optional<nn::SharedWith>> shared = {};
  bool evaluating = false;  // forwards only: nothing is kept for a backward
  int kept_outputs = 0;     // how many of the model's outputs are kept, from the first on
  // Intra-op threads of actions that set no number; 0 = those of the thread.
  int threads = 0;

  // B computes an additive loss from the micro-batch's output. The first B of the last stage
  // computes a whole-batch loss. Null: the caller's backward gives the outputs' gradients.
  const nn::Loss* loss = nullptr;
  std::vector<at::Tensor> targets = {};  // [micro-batch]
  at::Tensor whole_target = {};          // for a whole-batch loss
  std::vector<double> shares = {};       // [micro-batch] its weight / the mini-batch's weight
  double gradient_scale = 1;             // multiplies every gradient, not the loss

  // For data parallelism; both may be empty.
  comm::Group replicas = {};
  std::shared_ptr<StageHooks> hooks = {};

  TiedCopies* ties = nullptr;            // of the stages' model
  std::shared_ptr<MessageLog> log = {};  // of tensor ranks; may be null

  // For NORM and STEP; null if the table has none.
  std::shared_ptr<StageOptimizers> optimizers = {};
  StepEnd end = {};

  // Over ranks: called when a caller's backward begins on the last rank.
  std::function<void()> begin_backward = {};

  // Suggests what would make a stage fit that ran out of memory; may be empty.
  std::function<std::string(int stage)> suggest = {};

  bool whole_batch_loss() const { return loss && loss->kind == nn::Loss::Kind::WholeBatch; }
};

// Values that a stage has made for other stages. Each is freed after the last route that carries
// it.
struct PendingSends {
  std::vector<StageValue> values;
  std::vector<int> routes;  // [value] how many routes still have to carry it
};

// One micro-batch in one stage.
struct MicroBatchState {
  bool recomputed = false;  // whether the table has an R for it
  Pass pass;
  PendingSends activations;          // made by F, in the order of plan.outputs
  nn::Values output_gradients;       // received so far, in the order of plan.outputs
  PendingSends gradients;            // made by B, in the order of plan.inputs
  nn::Values model_input_gradients;  // [input of the model]
};

// The mini-batch in one stage. Only the stage's rank uses it.
struct StageState {
  std::vector<MicroBatchState> micro_batches;
  nn::BufferCopies buffers;
  std::optional<nn::DeferredBatchNorm> batch_norms;  // with BatchNormStatistics::WholeBatch
  int forwards = 0;                                  // how many F have run
  int accumulations = 0;                             // how many B and W have begun
  // Last stage only, [micro-batch]:
  std::vector<nn::Values> outputs;          // of the model, if they are kept
  std::vector<bool> outputs_want_gradient;  // of the model
  std::vector<at::Tensor> losses;           // detached
  std::vector<nn::Values> loss_gradients;   // of the model's outputs: from the caller, or from a
                                            // whole-batch loss
};

// One mini-batch in the pipeline. It lives from the first F to the last B: with a caller's own
// backward, longer than one call.
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
  // Whether one thread runs all ranks' actions: it must not wait for itself.
  bool one_thread = false;

  const schedule::Schedule& table() const { return inputs.table; }
  int micro_batches() const { return inputs.table.micro_batches; }
  MicroBatchState& at(int stage, int micro_batch) {
    return stage_states[stage].micro_batches.at(micro_batch);
  }
  const MicroBatchState& at(int stage, int micro_batch) const {
    return stage_states[stage].micro_batches.at(micro_batch);
  }
  StageState& last() { return stage_states.back(); }
  // Whether I is the whole backward, and W nothing.
  bool whole_in_input_grad() const { return inputs.hooks && !inputs.hooks->can_split_backward(); }
  nn::RunKey key(int micro_batch) const;
};

}  // namespace trestle::pipeline
