#include "trestle/nn/run_key.h"

#include "trestle/base/keyed_seed.h"

namespace trestle::nn {
namespace {

thread_local LayerRun* innermost = nullptr;

constexpr std::int64_t all_micro_batches = -1;

}  // namespace

LayerRun::LayerRun(const RunKey& key, std::int64_t layer)
    : LayerRun(Place{.seed = keyed_seed(key.seed, key.step, layer, key.micro_batch),
                     .element_seed = keyed_seed(key.seed, key.step, layer, all_micro_batches),
                     .example = key.example}) {}

LayerRun::LayerRun(const Place& place) : place_(place), outer_(innermost) { innermost = this; }

LayerRun::~LayerRun() { innermost = outer_; }

std::optional<LayerRun::Place> LayerRun::place() {
  if (innermost == nullptr) return std::nullopt;
  return innermost->place_;
}

std::optional<RunKey> LayerRun::next_inner_key() {
  if (innermost == nullptr) return std::nullopt;
  return RunKey{.seed = innermost->place_.seed, .step = innermost->place_.inner_runs++};
}

std::optional<LayerRun::ElementKey> LayerRun::next_element_key() {
  if (innermost == nullptr) return std::nullopt;
  Place& place = innermost->place_;
  return ElementKey{.seed = keyed_seed(place.element_seed, place.draws++, 0, 0),
                    .example = place.example};
}

}  // namespace trestle::nn
