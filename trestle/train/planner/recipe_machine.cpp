#include "trestle/train/planner/recipe_machine.h"

#include <algorithm>
#include <limits>

#include "trestle/device/virtual_device.h"

namespace trestle::train {

plan::Machine machine_of_device(const Device& device, const std::optional<plan::Machine>& file) {
  plan::Machine machine;
  machine.name = device.torch.is_privateuseone() ? "virtual devices" : "this machine";
  machine.memory.value = std::numeric_limits<double>::max();
  if (file) {
    machine.name = file->name;
    machine.memory = file->memory;
    machine.price_per_hour = file->price_per_hour;
    machine.measured_on = file->measured_on;
  }
  if (device.budget > 0) machine.memory = {.value = static_cast<double>(device.budget)};
  machine.transformer.spread = {
      .value = 0.15, .origin = plan::Origin::Assumed, .from = "15 %, no plan was measured yet"};
  return machine;
}

void install_planned_devices(const recipe::Recipe& recipe, int count) {
  install_virtual_devices({.count = std::clamp(count, 1, most_virtual_devices),
                           .threads_per_device = static_cast<int>(recipe.devices.threads)});
}

int planned_count(const recipe::Recipe& recipe, const std::vector<Device>& devices) {
  const std::int64_t ranks =
      recipe.mesh.ranks_of_stage() * std::max<std::int64_t>(recipe.mesh.pipeline, 1);
  return std::max(static_cast<int>(devices.size()), static_cast<int>(ranks));
}

}  // namespace trestle::train
