#include "trestle/schedule/generators/generators.h"
#include "trestle/schedule/interleave.h"

namespace trestle::schedule::generators {

namespace {

// Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters". With v
// stages on each rank the bubble is v times shorter.
Schedule make_interleaved_1f1b(const GenerateOptions& options) {
  return interleave(options, {.warm_up_per_rank = 2});
}

}  // namespace

Generator interleaved_1f1b_schedule() {
  return {.name = "interleaved_1f1b",
          .summary = "1f1b with several stages on each rank; a shorter bubble, more messages",
          .sizes =
              "a multiple of ranks (Megatron-LM's rule), or micro-batches that "
              "max(1, micro-batches / ranks) divides (PyTorch's)",
          .stages_per_rank = 0,
          .make = make_interleaved_1f1b};
}

}  // namespace trestle::schedule::generators
