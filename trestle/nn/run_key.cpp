#include "trestle/nn/run_key.h"

namespace trestle::nn {
namespace {

thread_local LayerRun* innermost = nullptr;

}  // namespace

LayerRun::LayerRun(std::uint64_t layer_seed) : seed_(layer_seed), outer_(innermost) {
  innermost = this;
}

LayerRun::~LayerRun() { innermost = outer_; }

std::optional<RunKey> LayerRun::next_inner_key() {
  if (innermost == nullptr) return std::nullopt;
  return RunKey{.seed = innermost->seed_, .step = innermost->inner_runs_++, .micro_batch = 0};
}

}  // namespace trestle::nn
