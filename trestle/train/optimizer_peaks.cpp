#include "trestle/train/optimizer_peaks.h"

#include <algorithm>

#include "trestle/train/sharding_plan.h"

namespace trestle::train {

int step_temporaries(const recipe::Recipe& recipe) {
  const optim::OptimizerOptions& options = recipe.optimizer;
  const bool centered = options.name == "rmsprop" && options.centered;
  const bool fused = recipe.devices.use.find("cuda") == std::string::npos && !centered;
  if (fused) return recipe.model.memory_format == "channels_last" ? 1 : 0;
  if (options.name != "sgd") return 3;
  return (options.weight_decay > 0 ? 1 : 0) + (options.nesterov ? 1 : 0);
}

void add_optimizer_peaks(const recipe::Recipe& recipe, const std::vector<SteppedBytes>& stages,
                         const simulate::Costs& costs, schedule::Timeline* timeline) {
  std::vector<Bytes> held(timeline->device_peak_bytes.size(), 0);
  std::vector<Bytes> largest(held.size(), 0);
  for (std::size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const auto device = static_cast<std::size_t>(timeline->device_of_stage.at(stage));
    const auto& cost = costs.stages[stage];
    const OptimizerStepBytes step =
        bytes_during_optimizer_step(recipe, stages[stage].trained, stages[stage].largest);
    held[device] += cost.persistent + std::min(cost.gradients, step.gradients);
    // Stages of one device step at the same time where each has a thread.
    largest[device] = costs.concurrency == simulate::Concurrency::OneThread
                          ? std::max(largest[device], step.largest)
                          : largest[device] + step.largest;
  }
  for (std::size_t device = 0; device < held.size(); ++device) {
    Bytes& peak = timeline->device_peak_bytes[device];
    peak = std::max(peak, held[device] + step_temporaries(recipe) * largest[device]);
  }
}

}  // namespace trestle::train
