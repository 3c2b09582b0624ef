#include "trestle/pipeline/loss_step.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <functional>

#include "trestle/base/error.h"
#include "trestle/base/keyed_seed.h"
#include "trestle/base/text.h"
#include "trestle/device/error_context.h"
#include "trestle/device/keyed_random.h"
#include "trestle/device/transfer.h"
#include "trestle/pipeline/replicas.h"

namespace trestle::pipeline {
namespace {

// The last stage's graph is there for the loss alone, so its output may be written to, unless it is
// to be returned. The target is the caller's, unless it had to be copied to the device.
at::Tensor call(StepState& state, const at::Tensor& output, bool owned, const at::Tensor& target,
                int micro_batch) {
  const nn::Loss& loss = *state.inputs.loss;
  // Keyed as if it were one more layer.
  const nn::RunKey key = state.key(micro_batch);
  const KeyedRandom random(
      output.device(),
      keyed_seed(key.seed, key.step, state.cut.stages.back().last_layer, key.micro_batch));
  const at::AutoGradMode grad(true);
  const at::Tensor here = copy_beside(target, output.device(), state.copies);
  auto handed = state.loss_boundary.hand_over({output, here}, {owned, !here.is_same(target)},
                                              std::hash<std::string>()(loss.name));
  at::Tensor value;
  try {
    value = loss.value(handed.values[0], handed.values[1]);
  } catch (...) {
    rethrow_with_context(
        text("in loss '", loss.name, "' (output and target ", nn::describe({output, here}), ")"));
  }
  state.loss_boundary.take_back(handed);
  // Its gradient is a share, or a gradient scaler's scale, which may be more than fp16 can hold.
  if (value.defined() && (value.scalar_type() == at::kHalf || value.scalar_type() == at::kBFloat16))
    value = value.to(at::kFloat);
  if (!value.defined() || value.dim() != 0) {
    throw UsageError(text("loss '", loss.name, "' must return one number (a 0-dim tensor); got ",
                          nn::describe({value})));
  }
  if (output.requires_grad() && !value.requires_grad()) {
    throw UsageError(text("loss '", loss.name, "' has no gradient, and the model's output has one"),
                     {.hint = "Compute it from the output itself: no detach(), no item()."});
  }
  return value;
}

// The loss alone: some operators (mse_loss) return it in memory that is as large as their input.
at::Tensor number(const at::Tensor& loss) { return loss.detach().clone(); }

}  // namespace

at::Tensor micro_batch_loss(StepState& state, const at::Tensor& output, int micro_batch) {
  const at::Tensor loss = call(state, output, state.inputs.kept_outputs == 0,
                               state.inputs.targets[micro_batch], micro_batch);
  state.last().losses[micro_batch] = number(loss);
  return loss;
}

void take_whole_batch_loss(StepState& state) {
  std::vector<at::Tensor> pieces;
  for (const auto& output : state.last().outputs) {
    if (output.empty()) {
      throw UsageError("loss '" + state.inputs.loss->name +
                           "' needs the outputs of the whole mini-batch, but the table starts a "
                           "backward before the last forward",
                       {.hint = "Use schedule 'gpipe', or a loss that is defined for each "
                                "micro-batch."});
    }
    pieces.push_back(output[0]);
  }
  nn::GradientSink sink(1);
  std::int64_t begin = 0, target_begin = 0;  // of this replica's part of the mini-batch
  const at::Tensor all = gather_rows(state.inputs.replicas, at::cat(pieces).detach(), &begin);
  const at::Tensor target =
      gather_rows(state.inputs.replicas, state.inputs.whole_target, &target_begin);
  const at::Tensor whole = sink.begin(0, all);
  const at::Tensor loss = call(state, whole, /*owned=*/true, target, 0);
  loss.backward(at::full_like(loss.detach(), state.inputs.gradient_scale));
  state.last().losses[0] = number(loss);
  auto& gradients = state.last().loss_gradients;
  gradients.resize(state.micro_batches());
  for (int m = 0; m < state.micro_batches(); ++m) {
    const at::Tensor gradient = sink.gradient(0);
    const std::int64_t size = pieces[m].size(0);
    gradients[m] = {gradient.defined() ? gradient.narrow(0, begin, size) : gradient};
    begin += size;
  }
}

}  // namespace trestle::pipeline
