#include "trestle/pipeline/execute/loss_step.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/device/error_context.h"
#include "trestle/device/keyed_random.h"
#include "trestle/device/transfer.h"
#include "trestle/pipeline/execute/replicas.h"

namespace trestle::pipeline {
namespace {

// The arguments of a loss.
struct LossArguments {
  const at::Tensor& output;
  bool owned = false;  // whether the loss may write to the output
  const at::Tensor& target;
  int micro_batch = 0;
};

at::Tensor checked_loss(const nn::Loss& loss, at::Tensor value, const at::Tensor& output) {
  // Its gradient is a share, times a gradient scaler's scale: fp16 may not hold that.
  if (value.defined() && (value.scalar_type() == at::kHalf || value.scalar_type() == at::kBFloat16))
    value = value.to(at::kFloat);
  if (!value.defined() || value.dim() != 0 || value.is_complex()) {
    throw UsageError(text("loss '", loss.name,
                          "' must return one real number (a 0-dim tensor); got ",
                          nn::describe({value})));
  }
  if (output.requires_grad() && !value.requires_grad()) {
    throw UsageError(text("loss '", loss.name, "' has no gradient, but the model's output has one"),
                     {.hint = "Compute it from the output itself: no detach(), no item()."});
  }
  return value;
}

at::Tensor compute_loss(MiniBatchState& state, const LossArguments& given) {
  const nn::Loss& loss = *state.inputs.loss;
  const at::Tensor& output = given.output;
  // Keyed like one more layer.
  const nn::RunKey key = state.key(given.micro_batch);
  const KeyedRandom random(
      output.device(),
      keyed_seed(key.seed, key.step, state.cut.stages.back().last_layer, key.micro_batch));
  const at::AutoGradMode grad(true);
  // The target is the caller's tensor unless it is copied to the device.
  const at::Tensor target = copy_beside(given.target, output.device(), state.copies);
  auto arguments =
      state.loss_boundary.hand_over({output, target}, {given.owned, !target.is_same(given.target)},
                                    std::hash<std::string>()(loss.name));
  at::Tensor value;
  try {
    value = loss.value(arguments.values[0], arguments.values[1]);
  } catch (...) {
    rethrow_with_context(
        text("in loss '", loss.name, "' (output and target ", nn::describe({output, target}), ")"));
  }
  state.loss_boundary.take_back(arguments);
  return checked_loss(loss, std::move(value), output);
}

// A copy: some operators (mse_loss) return a loss in memory as large as their input.
at::Tensor copy_of_loss(const at::Tensor& loss) { return loss.detach().clone(); }

// This replica's output, with all micro-batches concatenated.
at::Tensor whole_output(const MiniBatchState& state) {
  std::vector<at::Tensor> outputs;
  for (const auto& output : state.stage_states.back().outputs) {
    if (output.empty()) {
      throw UsageError("loss '" + state.inputs.loss->name +
                           "' needs the outputs of the whole mini-batch, but the table starts a "
                           "backward before the last forward",
                       {.hint = "Use schedule 'gpipe', or a loss that is defined for each "
                                "micro-batch."});
    }
    outputs.push_back(output[0]);
  }
  return at::cat(outputs).detach();
}

}  // namespace

// Without the output as a result the loss may write to it: only the loss uses the last stage's
// graph.
at::Tensor micro_batch_loss(MiniBatchState& state, const at::Tensor& output, int micro_batch) {
  const at::Tensor loss = compute_loss(state, {.output = output,
                                               .owned = state.inputs.kept_outputs == 0,
                                               .target = state.inputs.targets[micro_batch],
                                               .micro_batch = micro_batch});
  state.last().losses[micro_batch] = copy_of_loss(loss);
  return loss;
}

void compute_whole_batch_loss(MiniBatchState& state) {
  nn::GradientSink sink(1);
  const auto& replicas = state.inputs.replicas;
  const GatheredRows all = gather_rows(replicas, whole_output(state));
  const at::Tensor target = gather_rows(replicas, state.inputs.whole_target).rows;
  const at::Tensor output = sink.begin(0, all.rows);
  const at::Tensor loss = compute_loss(state, {.output = output, .owned = true, .target = target});
  loss.backward(at::full_like(loss.detach(), state.inputs.gradient_scale));
  state.last().losses[0] = copy_of_loss(loss);
  auto& gradients = state.last().loss_gradients;
  gradients.resize(state.micro_batches());
  std::int64_t begin = all.begin;
  const at::Tensor gradient = sink.gradient(0);
  for (int m = 0; m < state.micro_batches(); ++m) {
    const std::int64_t size = state.last().outputs[m][0].size(0);
    gradients[m] = {gradient.defined() ? gradient.narrow(0, begin, size) : gradient};
    begin += size;
  }
}

}  // namespace trestle::pipeline
