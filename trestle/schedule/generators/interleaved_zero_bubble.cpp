#include "trestle/schedule/generators/generators.h"
#include "trestle/schedule/interleave.h"

namespace trestle::schedule::generators {

namespace {

// Interleaved 1F1B with split backwards (Qi et al. 2023, "Zero Bubble Pipeline Parallelism"), in
// the order of torch.distributed.pipelining. With one stage on each rank it is zb_h1.
Schedule make_interleaved_zero_bubble(const GenerateOptions& options) {
  return interleave(options, {.splits = true, .late_weight_grads = 1});
}

}  // namespace

Generator interleaved_zero_bubble_schedule() {
  return {.name = "interleaved_zero_bubble",
          .summary = "zb_h1 with several stages on each rank",
          .splits_backward = true,
          .sizes =
              "a multiple of ranks (Megatron-LM's rule), or micro-batches that "
              "max(1, micro-batches / ranks) divides (PyTorch's)",
          .stages_per_rank = 0,
          .make = make_interleaved_zero_bubble};
}

}  // namespace trestle::schedule::generators
