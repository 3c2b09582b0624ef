#include "trestle/pipeline/step_checks.h"

#include <cmath>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/validate.h"

namespace trestle::pipeline {

void check_history(const nn::Values& inputs, const at::Tensor& target) {
  const auto refuse = [](const std::string& what) {
    throw UsageError(what +
                         " was computed from something that wants a gradient, and step() gives "
                         "gradients to the pipeline's parameters alone",
                     {.hint = "Use forward() and your own backward(), or pass it detached."});
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && inputs[i].requires_grad() && !inputs[i].is_leaf())
      refuse(text("input ", i));
  }
  if (target.defined() && target.requires_grad() && !target.is_leaf()) refuse("the target");
}

void check_step(const StepOptions& options, std::int64_t steps_before, bool has_optimizers) {
  if (options.scaler && !has_optimizers)
    throw UsageError("StepOptions::scaler without PipelineOptions::optimizer",
                     {.hint = "Give the scale as gradient_scale, and call scaler.unscale() before "
                              "your optimizer's step."});
  if (!std::isfinite(options.gradient_scale))
    throw UsageError(text("gradients cannot be scaled by ", options.gradient_scale));
  const std::int64_t first = options.first_micro_batch;
  if (first < 0 || (first > 0 && steps_before == 0))
    throw UsageError(
        text("first_micro_batch = ", first,
             first < 0 ? " is negative" : " goes on with the step before, and there is none"),
        {.hint = "The first step of several has first_micro_batch = 0."});
}

void check_loss(const nn::Loss& loss, const schedule::Schedule& table) {
  if (loss.kind != nn::Loss::Kind::WholeBatch || schedule::all_forwards_first(table)) return;
  nn::refuse_whole_batch(loss, table.name);
}

}  // namespace trestle::pipeline
