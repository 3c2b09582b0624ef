#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "trestle/nn/loss.h"
#include "trestle/pipeline/channel_table.h"
#include "trestle/pipeline/stage.h"
#include "trestle/schedule/schedule.h"
#include "trestle/schedule/timeline.h"

namespace trestle::pipeline {

// What a stage has made for other ranks.
struct PendingSends {
  nn::Values values;
  std::vector<bool> requires_grad;
  int sends_left = 0;
};

// One mini-batch on its way through the pipeline: what all ranks need to know about it, and where
// they leave what they made. Lives from the first F to the last B, which for a caller's own
// backward is longer than one call.
struct StepState {
  StepState(schedule::Schedule lowered, const std::vector<Stage>& all_stages, const Cut& the_cut,
            std::chrono::milliseconds deadline);

  const schedule::Schedule table;  // lowered
  const std::vector<Stage>& stages;
  const Cut& cut;
  ChannelTable channels;
  std::uint64_t seed = 0;
  std::int64_t step = 0;

  std::vector<nn::Values> inputs;          // [micro-batch], of the model, detached
  std::vector<bool> input_wants_gradient;  // for each input of the model
  std::vector<std::vector<Pass>> passes;   // [stage][micro-batch]
  std::vector<std::vector<bool>>
      recomputed;  // [stage][micro-batch]: does the table have an R for it?
  std::vector<nn::Values> outputs;
  std::vector<std::vector<std::int64_t>>
      output_sizes;  // [micro-batch]: dimension 0 of each output, for forward()
  bool keep_outputs = false;
  bool evaluating = false;  // forwards only, nothing is kept for a backward
  // [stage][micro-batch]: gradients of the model's inputs that the stage uses, by input number.
  std::vector<std::vector<nn::Values>> input_gradients;

  // With a loss that adds up: B computes it from the micro-batch's output.
  const nn::Loss* loss = nullptr;
  std::vector<at::Tensor> targets;  // [micro-batch], on the last device
  std::vector<double> shares;       // [micro-batch]: its weight divided by the mini-batch's
  std::vector<at::Tensor> losses;   // [micro-batch], detached

  // Without: gradients of the model's outputs are given, by the caller's backward or from the loss
  // of the whole batch.
  std::vector<nn::Values> output_gradients;  // [micro-batch]
  at::Tensor whole_target;  // for a whole-batch loss: taken at the first B of the last stage

  // [stage][micro-batch]: what F made and B made until the last SEND has taken it, and the
  // gradients that came in so far.
  std::vector<std::vector<PendingSends>> activations;  // in the order of plan.outputs
  std::vector<std::vector<PendingSends>> returned;     // in the order of plan.inputs
  std::vector<std::vector<nn::Values>> gradients;      // in the order of plan.outputs

  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  std::vector<std::vector<schedule::Event>> events;         // [rank]
  std::vector<std::vector<schedule::MemorySample>> memory;  // [rank]

  // Says what would make a stage fit that ran out of memory; may be empty.
  std::function<std::string(int stage)> suggest;

  int micro_batches() const { return table.micro_batches; }
  double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  schedule::Timeline timeline() const;
};

}  // namespace trestle::pipeline
