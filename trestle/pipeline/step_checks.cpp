#include "trestle/pipeline/step_checks.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <cmath>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/validate.h"

namespace trestle::pipeline {
namespace {

void check_target(const at::Tensor& target) {
  if (!target.defined() || !target.requires_grad()) return;
  throw UsageError(
      "the target needs a gradient, but step() computes gradients of parameters and inputs only",
      {.hint = "Use forward() and your own backward(), or detach it."});
}

void check_first_micro_batch(std::int64_t first, std::int64_t steps_before) {
  if (first == 0 || (first > 0 && steps_before > 0)) return;
  throw UsageError(text("first_micro_batch = ", first,
                        first < 0 ? " is negative"
                                  : " continues the previous step, but there is no previous step"),
                   {.hint = "The first step of several has first_micro_batch = 0."});
}

}  // namespace

void check_step(const at::Tensor& target, const StepOptions& step_options,
                const PipelineOptions& options, std::int64_t steps_before) {
  if (!at::GradMode::is_enabled())
    throw UsageError("Pipeline::step() under no_grad: a training step needs gradients",
                     {.hint = "Use evaluate() for forwards only."});
  check_target(target);
  if (step_options.scaler && !options.optimizer.make)
    throw UsageError("StepOptions::scaler without PipelineOptions::optimizer",
                     {.hint = "Pass the scale as gradient_scale, and call scaler.unscale() before "
                              "your optimizer's step."});
  if (!std::isfinite(step_options.gradient_scale))
    throw UsageError(text("gradients cannot be scaled by ", step_options.gradient_scale));
  check_first_micro_batch(step_options.first_micro_batch, steps_before);
}

void check_loss(const nn::Loss& loss, const schedule::Schedule& table) {
  if (loss.kind != nn::Loss::Kind::WholeBatch || schedule::all_forwards_first(table)) return;
  nn::refuse_whole_batch(loss, table.name);
}

void refuse_unknown_slices(const nn::ParameterSlices& slices) {
  if (slices.empty()) return;
  throw UsageError(
      "the pipeline's layers are slices of tensor ranks, which it does not know: their "
      "norm would be that of this rank's slices alone",
      {.hint = "Make it with trestle::parallelize() on a mesh with a dimension "
               "'tensor'."});
}

}  // namespace trestle::pipeline
