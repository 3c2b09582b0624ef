#include "trestle/pipeline/execute/callers_backward.h"

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/pipeline/execute/autograd_bridge.h"
#include "trestle/pipeline/execute/normal_mode_guard.h"

namespace trestle::pipeline {

void CallersBackward::run_from_loss(const at::Tensor& loss, const RankLink* link) {
  if (link && !link->is_last())
    throw UsageError(text("Pipeline::backward() with a loss on rank ", link->rank(),
                          ", where the model's output is not"),
                     {.rank = link->rank(),
                      .hint = "Pass the loss on the last rank, and call backward() without one on "
                              "all other ranks."});
  const std::uint64_t before = link ? link->backwards() : 0;
  loss.backward();
  if (link && link->backwards() == before)
    throw UsageError(
        "Pipeline::backward() with a loss that does not depend on what forward() returned",
        {.rank = link->rank(),
         .hint = "The other ranks wait for the backward through the model's output."});
}

void CallersBackward::run_stages(PartitionedModel& model) {
  if (!pending_.state)
    throw StateError(was_dropped_
                         ? "Pipeline::backward() after a second forward(), which ended the "
                           "first one's mini-batch"
                         : "Pipeline::backward() without a forward() before it",
                     {.hint = "All ranks call forward() with gradients enabled, then backward()."});
  const NormalModeGuard normal_mode;
  const auto [inputs, state] = std::exchange(pending_, {});
  state->inputs.begin_backward();
  model.executor.run(*state, Phase::Backward);
  model.remember(*state);
  pass_on_input_gradients(inputs, *state);
}

}  // namespace trestle::pipeline
