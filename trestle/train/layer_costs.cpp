#include "trestle/train/layer_costs.h"

#include "trestle/pipeline/micro_batch.h"
#include "trestle/pipeline/profile_layers.h"
#include "trestle/schedule/lower.h"
#include "trestle/train/progress.h"
#include "trestle/train/setup.h"

namespace trestle::train {

LayerCosts measure_layers(const recipe::Recipe& recipe, Progress& progress,
                          const models::OwnModels& own) {
  const std::vector<Device> devices = open_devices(recipe);
  const nn::Layers model = make_model(recipe, own);
  const Task task = make_task(recipe, progress);
  const data::Batch batch = *task.training->epoch(0).next();
  const auto pieces =
      pipeline::split({batch.inputs}, static_cast<int>(recipe.pipeline.micro_batches));
  const at::Tensor& piece = pieces[0][0];
  LayerCosts result;
  result.profile = with_inputs_named(
      recipe, piece, [&] { return profile_layers(model, {piece}, devices.at(0).torch); });
  result.examples = static_cast<int>(piece.size(0));
  for (const Device& device : devices) result.budgets.push_back(device.budget);
  result.sizes = {.optimizer_states = optimizer_state_factor(recipe.optimizer),
                  .micro_batches = static_cast<int>(pieces.size()),
                  .recompute = schedule::parse_recompute(recipe.pipeline.recompute.at(0))};
  return result;
}

}  // namespace trestle::train
