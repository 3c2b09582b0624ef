#include "trestle/train/planner/recipe_machine.h"

#include <algorithm>
#include <limits>

namespace trestle::train {

plan::Machine machine_of_device(const Device& device) {
  plan::Machine machine;
  machine.name = device.torch.is_privateuseone() ? "virtual devices" : "this machine";
  machine.memory.value =
      device.budget > 0 ? static_cast<double>(device.budget) : std::numeric_limits<double>::max();
  machine.transformer.spread = {
      .value = 0.15, .origin = plan::Origin::Assumed, .from = "15 %, no plan was measured yet"};
  return machine;
}

int planned_count(const recipe::Recipe& recipe, const std::vector<Device>& devices) {
  const std::int64_t ranks =
      recipe.mesh.ranks_of_stage() * std::max<std::int64_t>(recipe.mesh.pipeline, 1);
  return std::max(static_cast<int>(devices.size()), static_cast<int>(ranks));
}

}  // namespace trestle::train
